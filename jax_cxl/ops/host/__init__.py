"""Operations between processes, outside of compiled programs."""

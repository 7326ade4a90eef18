"""Models a collective on a machine that you describe. Also writes the study in docs/performance.md.

python -m lab.simulator --hosts 12 --cards 6 --op all_reduce --bytes 64MiB
"""

import sys

from lab.simulator import cli

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))

"""Runs a function of the script in a spawned process, as data loaders do."""

import multiprocessing


def double(number: int) -> int:
    return 2 * number


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))

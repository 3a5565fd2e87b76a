"""`python -m v8.run`: the main job; the same as `python -m v8 run`."""

import sys

from v8.__main__ import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])

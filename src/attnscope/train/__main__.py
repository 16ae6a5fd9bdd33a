"""`torchrun --nproc-per-node N -m attnscope.train RECIPE ...`: the command `attnscope train`, on every rank."""

import sys

from attnscope.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))

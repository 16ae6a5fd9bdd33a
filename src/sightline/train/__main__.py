"""`torchrun --nproc-per-node N -m sightline.train RECIPE ...`: the command `sightline train`, on every rank."""

import sys

from sightline.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))

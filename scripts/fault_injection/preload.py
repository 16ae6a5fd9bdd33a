"""Imports what the commands of the campaign need, in the process that they are forked from."""

# ruff: noqa: F401
import pyarrow.parquet
import safetensors.torch
import torch._dynamo
import torch.distributed.checkpoint
import torch.utils.tensorboard

import attnscope.cli.heads
import attnscope.cli.survey
import attnscope.cli.train
import attnscope.heads
import attnscope.survey
import attnscope.train
import scripts.fault_injection.scenarios

"""Record the attention of any PyTorch model in one forward pass, as a `Trace`."""

from attnscope.recording.estimates import Estimate, estimate
from attnscope.recording.files.opening import open_trace
from attnscope.recording.loading import load
from attnscope.recording.reading import read
from attnscope.recording.recorder import record
from attnscope.recording.trace import Trace
from attnscope.recording.word_maps import WordMaps, record_words

__all__ = ["Estimate", "Trace", "WordMaps", "estimate", "load", "open_trace", "read", "record", "record_words"]

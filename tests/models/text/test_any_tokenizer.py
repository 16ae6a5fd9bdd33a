import shutil
from pathlib import Path

import pytest

from attnscope.errors import CheckpointError
from attnscope.models.text.any_tokenizer import AnyTokenizer, load_tokenizer
from attnscope.models.text.character_tokenizer import CharacterTokenizer
from attnscope.models.text.tokenizer import Tokenizer

MINILM = Path(__file__).resolve().parents[3] / ".cache" / "models" / "minilm-l6"


@pytest.fixture(params=["characters", "library"])
def codec(request) -> AnyTokenizer:
    return Tokenizer.load(MINILM) if request.param == "library" else CharacterTokenizer.from_text("to be or not")


def test_both_kinds_can_be_used_alike(codec, tmp_path):
    tokens = codec.encode("to be", add_special_tokens=False)
    assert max(tokens) < codec.vocab_size
    stream = codec.stream()
    assert "".join(stream.add(token) for token in tokens) + stream.finish() == codec.decode(tokens) == "to be"
    assert len(codec.texts(tokens)) == len(tokens)
    assert codec.bos_token_id is None
    assert codec.eos_token_ids == frozenset()
    codec.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert type(again) is type(codec)
    assert again.encode("to be", add_special_tokens=False) == tokens


def test_a_folder_with_no_or_two_tokenizers_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json or characters\.json in .* neither"):
        load_tokenizer(tmp_path)
    CharacterTokenizer.from_text("ab").save(tmp_path)
    shutil.copy(MINILM / "tokenizer.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"found tokenizer\.json and characters\.json"):
        load_tokenizer(tmp_path)

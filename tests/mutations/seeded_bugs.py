"""Bugs to write into a copy of the source, and the tests that must fail then.

Each replaces a text that occurs once in its file. The tests are files of the set that continuous integration runs.
"""

from __future__ import annotations

from typing import NamedTuple


class SeededBug(NamedTuple):
    """A text of a source file, the wrong text for it, and the tests that must fail."""

    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


NUMERICS = ("tests/attention/test_numerics.py", "tests/attention/test_contracts.py")


def in_attention(file: str, right: str, wrong: str) -> SeededBug:
    """A bug of the attention package."""
    return SeededBug(f"attention/{file}", right, wrong, NUMERICS)


ATTENTION = {
    "scale one percent too large": in_attention("spec.py", "scale = factor * (", "scale = 1.01 * factor * ("),
    "last key dropped by streaming": in_attention(
        "blocks.py", "max(region.right for region in strip)\n", "max(region.right for region in strip) - 1\n"
    ),
    "last key dropped by the fused kernel": in_attention(
        "kernels.py",
        "query, key, value, 0.0, is_causal, attn_mask=attn_mask",
        "query, key[:, :, : -1 or None], value[:, :, : -1 or None], 0.0, is_causal, attn_mask=attn_mask",
    ),
    "accumulator not rescaled by streaming": in_attention(
        "streaming.py", "accumulator.mul_(rescale).add_(", "accumulator.add_("
    ),
    "accumulator not rescaled when merging": in_attention(
        "fused.py", "output.mul_((old - finite).exp_()[..., None]).addcmul_(", "output.addcmul_("
    ),
    "window off by one": in_attention(
        "masks.py", "before if width is None else index(width) - 1", "before if width is None else index(width)"
    ),
    "polarity flipped": in_attention(
        "masks.py",
        "DenseMask(given if attend is not None else ~given)",
        "DenseMask(~given if attend is not None else given)",
    ),
    "causal from the upper left": in_attention(
        "masks.py", "return sizes.keys - sizes.queries if self.offset is None", "return 0 if self.offset is None"
    ),
    "empty rows with the kernel's lse": in_attention(
        "fused.py",
        "return None if block_sizes(bias.device).can_read and has_keys.all() else has_keys",
        "return None",
    ),
    "heads grouped in turns": in_attention(
        "reference.py",
        "key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)",
        "key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1)",
    ),
    "derivative of the softcap forgotten": in_attention(
        "scores.py", "return grad_output * (1 - (output / self.cap).square())", "return grad_output"
    ),
    "gradient of lse with the wrong sign": in_attention(
        "streaming.py", "delta -= self._rows(grad_lse", "delta += self._rows(grad_lse"
    ),
    "gradient of lse not shared between blocks": in_attention(
        "fused.py", "share = (part_lse - part.lse).exp_()[..., None]", "share = 1.0"
    ),
}


def on_cuda(file: str, right: str, wrong: str) -> SeededBug:
    """A bug of the attention package that shows on CUDA."""
    return SeededBug(f"attention/{file}", right, wrong, ("tests/attention/test_cuda.py",))


CUDA = {
    "lse with its padding": on_cuda("kernels.py", "return output, lse[..., :queries]", "return output, lse"),
    "lse from its end": on_cuda(
        "kernels.py", "return output, lse[..., :queries]", "return output, lse[..., -queries:]"
    ),
    "bias not aligned": on_cuda(
        "kernels.py", "bias if _is_aligned(bias, align) else _align_rows(bias, align)", "bias.contiguous()"
    ),
    "bias not expanded": on_cuda(
        "kernels.py", "bias.expand(*query.shape[:3], key.shape[2]) if operator.expands else bias", "bias"
    ),
    "grouped heads not expanded": on_cuda(
        "kernels.py", "key.shape[1] if operator.expands else 1", "key.shape[1] if False else 1"
    ),
    "head dim not padded": on_cuda(
        "fused.py", "dim if query.is_cpu else kernels.fit_head_dim(query.device, query.dtype, dim)", "dim"
    ),
    "a device forgotten": on_cuda("fused.py", "dtype=torch.float64, device=query.device)", "dtype=torch.float64)"),
    "output of the backward with heads first": on_cuda(
        "kernels.py", "        _rows_before_heads(output),\n", "        output.contiguous(),\n"
    ),
    "lse of the backward without padding": on_cuda(
        "kernels.py",
        "F.pad(lse.float(), (0, -queries % operator.lse_rows), value=math.inf).contiguous()",
        "lse.float().contiguous()",
    ),
    "gradients of grouped heads not summed": on_cuda(
        "kernels.py", "grad_key.unflatten(1, group).sum(2)", "grad_key.unflatten(1, group)[:, :, 0]"
    ),
    "flash attention from the wrong corner": on_cuda(
        "operators.py", "if fits and not (off_corner and operator.lower_right) and why", "if fits and why"
    ),
    "a key mask left on the cpu": on_cuda(
        "plan.py", "region_mask = None if found is None else found.to(spec.signature.device)", "region_mask = found"
    ),
}

PASS_TESTS = ("tests/matrix/test_kernel_passes.py",)
KERNEL_PASSES = {
    "keys of the first heads in every step": SeededBug(
        "matrix/kernel_passes.py", "key=inputs.key[:, heads.start // group :", "key=inputs.key[:, 0 :", PASS_TESTS
    ),
    "rows without keys counted in the mass": SeededBug(
        "matrix/kernel_passes.py", "(stop > start).cumsum(-1)", "(stop >= start).cumsum(-1)", PASS_TESTS
    ),
    "statistics kept after a change in place": SeededBug(
        "matrix/kernel_passes.py",
        "is_valid = self._rows is not None and self._rows.lse._version == self._version",
        "is_valid = self._rows is not None",
        PASS_TESTS,
    ),
    "a known lse in the wrong base": SeededBug(
        "matrix/kernel_passes.py", "return self.known_lse * LOG2_E", "return self.known_lse", PASS_TESTS
    ),
    "columns counted from 0": SeededBug(
        "attention/triton/layout.py", "tuple(counts), group, column_edges[0])", "tuple(counts), group, 0)", PASS_TESTS
    ),
    "rows of a block from its last row": SeededBug(
        "attention/intervals.py",
        "start_after=torch.where(has_keys, start, NO_KEY).flip(-1)",
        "start_after=torch.where(has_keys, start, 0).flip(-1)",
        PASS_TESTS,
    ),
    "copies that wait": SeededBug("attention/transfers.py", "non_blocking=is_upload", "non_blocking=False", PASS_TESTS),
}

MATRIX = {
    "weights of a block too small": SeededBug(
        "matrix/blocks.py",
        "logs.sub_(self.lse)",
        "logs.sub_(self.lse + 0.01)",
        ("tests/matrix/test_bins.py", "tests/matrix/test_summary.py"),
    ),
    "last column of a step lost": SeededBug(
        "matrix/blocks.py",
        "for left in range(first, last, wide):",
        "for left in range(first, last - 1, wide):",
        ("tests/matrix/test_bins.py", "tests/matrix/test_summary.py"),
    ),
    "mask of a block ignored": SeededBug(
        "matrix/blocks.py",
        "yield left, block.right, cells == block.area",
        "yield left, block.right, True",
        ("tests/matrix/test_bins.py", "tests/matrix/test_summary.py"),
    ),
    "cells of full blocks not counted": SeededBug(
        "matrix/reducers.py",
        "result += down.width * across.width",
        "result += down.width",
        ("tests/matrix/test_bins.py",),
    ),
    "largest weight of the last block only": SeededBug(
        "matrix/reducers.py",
        "torch.maximum(result, max_segments(max_segments(block.weights, down, -2), across, -1), out=result)",
        "result.copy_(max_segments(max_segments(block.weights, down, -2), across, -1))",
        ("tests/matrix/test_bins.py",),
    ),
    "columns summed over one block": SeededBug(
        "matrix/reducers.py",
        "self.column_sums[block.batch, block.heads, left:right].add_(lines.sum(-2))",
        "self.column_sums[block.batch, block.heads, left:right].copy_(lines.sum(-2))",
        ("tests/matrix/test_bins.py", "tests/matrix/test_summary.py"),
    ),
    "deviations of blocks not merged": SeededBug(
        "matrix/statistics.py",
        "self.squares[where].add_(squares + shift.square() * before * share)",
        "self.squares[where].add_(squares)",
        ("tests/matrix/test_matrix.py",),
    ),
    "mass without sinks": SeededBug(
        "matrix/statistics.py",
        "mass = torch.ones_like(lse) if source.spec.sinks is None else _mass(source, lse)",
        "mass = torch.ones_like(lse)",
        ("tests/matrix/test_matrix.py",),
    ),
    "negative index off by one": SeededBug(
        "matrix/indexing.py",
        "torch.where(found < 0, found + length, found)",
        "torch.where(found < 0, found + length - 1, found)",
        ("tests/matrix/test_matrix.py", "tests/matrix/test_use.py", "tests/matrix/test_conventions.py"),
    ),
}

RECORDING = {
    "sliding window of a model one key longer": SeededBug(
        "recording/hooks/transformers_masks.py",
        'Window(before=variables["sliding_window"] - 1,',
        'Window(before=variables["sliding_window"],',
        ("tests/recording/test_transformers_masks.py", "tests/recording/test_support.py"),
    ),
    "padding of a model ignored": SeededBug(
        "recording/hooks/transformers_masks.py",
        "return mask if padding is None else intersect(mask, reader.padding(padding))",
        "return mask",
        ("tests/recording/test_transformers_masks.py", "tests/recording/test_support.py"),
    ),
    "documents of a packed batch joined": SeededBug(
        "recording/hooks/transformers_masks.py",
        "return Documents(_cut(ids, self.columns, fill=-1), queries)",
        "return Documents(_cut(ids, self.columns, fill=-1) * 0, None if queries is None else queries * 0)",
        ("tests/recording/test_transformers_masks.py",),
    ),
    "softcap after what is added": SeededBug(
        "recording/hooks/transformers_attention.py",
        'parts.insert(0, Softcap(kwargs["softcap"]))',
        'parts.append(Softcap(2 * kwargs["softcap"]))',
        ("tests/recording/test_support.py",),
    ),
    "mask without flag read as full": SeededBug(
        "recording/hooks/transformers_attention.py",
        'return bool(kwargs["is_causal"])',
        "return False",
        ("tests/recording/test_transformers_masks.py",),
    ),
    "cached keys repeated at each step": SeededBug(
        "recording/layers/recorded.py",
        "return call.key.shape[2] if self.cross else call.row - call.column",
        "return 0",
        ("tests/recording/test_generation.py",),
    ),
    "changed cache not noticed": SeededBug(
        "recording/recorder.py",
        "if past and not same_numbers(call.key[:, :, past - 1 : past], self.last_key):",
        "if False:",
        ("tests/recording/test_generation.py",),
    ),
    "key head of a query head off": SeededBug(
        "recording/call.py",
        "[head // group for head in heads]",
        "[head % call.key.shape[1] for head in heads]",
        ("tests/recording/test_record.py",),
    ),
    "trace shares memory with the model": SeededBug(
        "recording/call.py",
        "query=_copied(call.query, kept),",
        "query=call.query.detach().to(kept),",
        ("tests/recording/test_ownership.py",),
    ),
    "normalisers of another dtype kept": SeededBug(
        "recording/call.py",
        "if call.lse is not None and kept == call.query.dtype else None",
        "if call.lse is not None else None",
        ("tests/recording/test_record.py", "tests/recording/test_ownership.py"),
    ),
    "columns of a step one too far left": SeededBug(
        "recording/layers/step_masks.py",
        "inside = (key >= step.left) & (key < step.right)",
        "inside = (key >= step.left) & (key < step.right - 1)",
        ("tests/recording/test_step_masks.py",),
    ),
    "first tokens of a window's cache counted": SeededBug(
        "recording/layers/statistics.py",
        "first = found.first_weight if call.column == 0 else",
        "first = found.first_weight if call.column >= 0 else",
        ("tests/recording/test_statistics.py",),
    ),
}

HEADS = {
    "padding counts as queries": SeededBug(
        "heads/rows.py",
        "counted, first = is_token & (summary.visible_keys > 1)",
        "counted, first = (summary.visible_keys > 1)",
        ("tests/heads/test_scores.py", "tests/heads/test_rows.py"),
    ),
    "rows with one key count": SeededBug(
        "heads/rows.py",
        "is_token & (summary.visible_keys > 1)",
        "is_token & (summary.visible_keys > 0)",
        ("tests/heads/test_scores.py", "tests/heads/test_rows.py"),
    ),
    "own token counts as its duplicate": SeededBug(
        "heads/rows.py",
        'elsewhere = [kind["duplicate"] - kind["own"] for kind in (weights, counts)]',
        'elsewhere = [kind["duplicate"] for kind in (weights, counts)]',
        ("tests/heads/test_scores.py", "tests/heads/test_rows.py"),
    ),
    "induction counts the next token": SeededBug(
        "heads/rows.py",
        '[kind[after] - kind["next"] - kind["own"] * twice for kind in (weights, counts)]',
        '[kind[after] - kind["own"] * twice for kind in (weights, counts)]',
        ("tests/heads/test_scores.py", "tests/heads/test_rows.py"),
    ),
    "leakage is its opposite": SeededBug(
        "heads/rows.py",
        '(self.summary.mass - weights["document"]).clamp(min=0.0)',
        'weights["document"]',
        ("tests/heads/test_scores.py", "tests/heads/test_rows.py"),
    ),
    "mean ablation per text": SeededBug(
        "heads/interventions.py",
        "output.values.mean(dim=(0, 2), keepdim=True)",
        "output.values.mean(dim=2, keepdim=True)",
        ("tests/heads/test_interventions.py",),
    ),
    "patch at all positions": SeededBug(
        "heads/interventions.py",
        "patched[:, :, where] = donated[:, :, where].to(patched)",
        "patched[:] = donated.to(patched)",
        ("tests/heads/test_interventions.py",),
    ),
    "layer that was not reached": SeededBug(
        "heads/interventions.py",
        "if layer not in self._calls and layer not in self._reached:",
        "if False:",
        ("tests/heads/test_interventions.py",),
    ),
    "rollout without the residual stream": SeededBug(
        "matrix/rollout.py",
        "share = residual * share + (1 - residual) * moved",
        "share = moved",
        ("tests/heads/test_rollout.py",),
    ),
    "label without standard errors": SeededBug(
        "heads/labels.py",
        "return score >= self.threshold and score >= MIN_STANDARD_ERRORS * standard_error",
        "return score >= self.threshold",
        ("tests/heads/test_labels.py", "tests/heads/test_relations.py", "tests/heads/test_relation_table.py"),
    ),
    "norm not frozen at its scale": SeededBug(
        "heads/logit_attribution.py",
        "direction = row * gain",
        "direction = row",
        ("tests/heads/test_logit_attribution.py",),
    ),
}

ATLAS = {
    "hidden bins shown as zero weight": SeededBug(
        "atlas/codec.py",
        "np.where(cells > 0, 1 + steps.clip(0, CODES), 0)",
        "np.where(cells > 0, 1 + steps.clip(0, CODES), 1)",
        ("tests/atlas/test_codec.py", "tests/atlas/test_atlas.py"),
    ),
    "codes rounded down": SeededBug(
        "atlas/codec.py",
        "np.floor(CODES * (logarithms + OCTAVES) / OCTAVES + 0.5)",
        "np.floor(CODES * (logarithms + OCTAVES) / OCTAVES - 0.5)",
        ("tests/atlas/test_codec.py", "tests/atlas/test_atlas.py"),
    ),
    "mean over all cells of a bin": SeededBug(
        "atlas/pyramid.py",
        "total.sum((1, 3)), cells.sum((1, 3))",
        "total.sum((1, 3)), 1 + cells.sum((1, 3))",
        ("tests/atlas/test_atlas.py",),
    ),
    "largest weight of coarse bins averaged": SeededBug(
        "atlas/pyramid.py", ".max((1, 3))", ".mean((1, 3))", ("tests/atlas/test_atlas.py",)
    ),
    "last level one too coarse": SeededBug(
        "atlas/plan.py",
        "return 1 << (self.deepest - z)",
        "return 2 << (self.deepest - z)",
        ("tests/atlas/test_atlas.py", "tests/atlas/test_plan.py"),
    ),
    "cache never evicts": SeededBug(
        "atlas/cache.py",
        "while self._nbytes + nbytes > self.max_bytes:",
        "while False:",
        ("tests/atlas/test_cache.py",),
    ),
    "marginals summed instead of averaged": SeededBug(
        "atlas/atlas.py",
        "mean = np.add.reduceat(values, starts) / np.diff(edges)",
        "mean = np.add.reduceat(values, starts)",
        ("tests/atlas/test_atlas.py",),
    ),
}

SURVEY = {
    "standard error of queries as samples": SeededBug(
        "survey/partials/moments.py",
        "residuals = self.squared_sums - 2 * means * self.sum_count_products",
        "residuals = self.squared_sums - means * self.sum_count_products",
        ("tests/survey/partials/test_moments.py",),
    ),
    "minimum of two shards added": SeededBug(
        "survey/partials/moments.py",
        'combine = {"minima": np.minimum, "maxima": np.maximum}',
        'combine = {"maxima": np.maximum}',
        ("tests/survey/partials/test_moments.py", "tests/survey/partials/test_partial.py"),
    ),
    "shard counted twice": SeededBug(
        "survey/partials/partial.py",
        "if twice := digests.keys() & partial.digests.keys():",
        "if twice := set[int]():",
        ("tests/survey/partials/test_partial.py",),
    ),
    "passages without a value counted": SeededBug(
        "survey/partials/batch_sums.py",
        "passages=(counts > 0).sum(-1)",
        "passages=(counts >= 0).sum(-1)",
        ("tests/survey/partials/test_accumulator.py",),
    ),
    "scores that are NaN counted": SeededBug(
        "survey/partials/batch_sums.py",
        "counted = counted & finite",
        "counted = counted | ~finite",
        ("tests/survey/partials/test_accumulator.py",),
    ),
    "end of a document lost": SeededBug(
        "survey/corpus/passages.py",
        "    if held:\n        yield held",
        "    if held and len(held) == size:\n        yield held",
        ("tests/survey/corpus/test_passages.py",),
    ),
    "offset with special tokens": SeededBug(
        "survey/corpus/passages.py",
        "offset += len(ids)",
        "offset += len(passage)",
        ("tests/survey/corpus/test_passages.py",),
    ),
    "top passages in the order of arrival": SeededBug(
        "survey/partials/examples.py",
        "order = np.lexsort((both[1], -both[0]))[..., :NUM_TOP]",
        "order = np.argsort(-both[0], -1)[..., :NUM_TOP]",
        ("tests/survey/partials/test_examples.py",),
    ),
    "fingerprint without the shards": SeededBug(
        "survey/corpus/plan.py",
        "json.dumps([chosen, sources, shards])",
        "json.dumps([chosen, sources])",
        ("tests/survey/corpus/test_plan.py", "tests/survey/test_folder.py"),
    ),
}

GUARD_TESTS = ("tests/explorer/test_guard.py",)


def in_guard(right: str, wrong: str) -> SeededBug:
    """A bug of what checks requests to the explorer."""
    return SeededBug("explorer/service/guard.py", right, wrong, GUARD_TESTS)


EXPLORER = {
    "any host name": in_guard("if len(headers.hosts) != 1 or headers.hosts[0].lower() not in", "if False and None in"),
    "two host names": in_guard("if len(headers.hosts) != 1 or", "if not headers.hosts or"),
    "any origin": in_guard("if headers.origin is not None and", "if False and"),
    "navigation from another site": in_guard(
        'if headers.fetch_site not in (None, "same-origin", "none"):', "if False:"
    ),
    "invitation used twice": in_guard("self._one_time_tokens.difference_update(found)", "pass"),
    "any authorization": in_guard('authorization is not None and _is_equal(f"Bearer', 'authorization or _is_equal(f"'),
    "data without the token": in_guard("if not is_exchange and not self._is_public(scope):", "if False:"),
    "body as large as it likes": in_guard(
        "if size > MAX_BODY_BYTES or (headers.length or 0) > MAX_BODY_BYTES:", "if False:"
    ),
    "POST of a form": in_guard('if kind != "application/json":', "if False:"),
    "path with escapes": in_guard("if not PLAIN_PATH.fullmatch(path):", "if False:"),
    "answers without a policy": in_guard(
        'message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]',
        'message["headers"] = [*message.get("headers", ())]',
    ),
}

TELEMETRY = {
    "largest logit beside sinks": SeededBug(
        "matrix/logits.py",
        'keys_alone = with_logits(source, "max_logit").without_sinks()',
        'keys_alone = with_logits(source, "max_logit")',
        ("tests/matrix/test_logits.py",),
    ),
    "place of the smaller logit": SeededBug(
        "telemetry/measurement.py",
        "larger = (second.maxima.logit > first.maxima.logit)",
        "larger = (second.maxima.logit < first.maxima.logit)",
        ("tests/telemetry/test_watcher.py", "tests/telemetry/test_measurement.py"),
    ),
    "places of all ranks added": SeededBug(
        "telemetry/reduction.py",
        "torch.cat([place * has_largest, sums, foreign])",
        "torch.cat([place, sums, foreign])",
        ("tests/telemetry/test_ranks.py",),
    ),
    "logits clipped twice": SeededBug(
        "telemetry/clip.py",
        "block.scale(math.sqrt(factor))",
        "block.scale(factor)",
        ("tests/telemetry/test_clip.py",),
    ),
}

KERNEL_TESTS = ("tests/attention/triton/test_kernels.py",)


def in_kernel(file: str, right: str, wrong: str) -> SeededBug:
    """A bug of a Triton kernel or its launch."""
    return SeededBug(f"attention/triton/{file}", right, wrong, KERNEL_TESTS)


TRITON = {
    "one key too many in a row": in_kernel(
        "rows.py",
        "(columns[None, :] < tl.minimum(stop, limit)[:, None])",
        "(columns[None, :] <= tl.minimum(stop, limit)[:, None])",
    ),
    "entropy not shifted with the maximum": in_kernel("rows.py", "fade * (tilt + shift * total)", "fade * tilt"),
    "squares rescaled once": in_kernel("rows.py", "fade * fade * squares", "fade * squares"),
    "distance one token too short": in_kernel("rows.py", "positions - (left + N - 1)", "positions - (left + N)"),
    "one whole tile too many": in_kernel(
        "rows.py", "first_position + 1) - low, 0) // N", "first_position + 1) - low + N - 1, 0) // N"
    ),
    "keys of another head": in_kernel("rows.py", "head // group * stride_kh", "head % group * stride_kh"),
    "sink missing from the entropy": in_kernel(
        "rows.py", "share * (above_top - tilt / total)", "share * (tl.log2(total) - tilt / total)"
    ),
    "the largest logit of the last tile": in_kernel(
        "rows.py", "best = tl.maximum(best, lane_tops)", "best = lane_tops"
    ),
    "offsets of 32 bits": in_kernel(
        "tiles.py", "base + tl.cast(first, tl.int64) * stride", "base + tl.cast(first, tl.int32) * stride.to(tl.int32)"
    ),
    "head dim read to a power of two": in_kernel(
        "tiles.py", "mask=dims[None, :] < head_dim, other", "mask=dims[None, :] < D, other"
    ),
    "softcap far too early": in_kernel("tiles.py", "tl.abs(x) < 0.55", "tl.abs(x) < 1.1"),
    "queries read past the end": in_kernel("columns.py", "inside = rows < limit", "inside = rows < limit + M"),
    "rows that attend to a part of a block not masked": in_kernel(
        "columns.py",
        "w = tl.where(allowed, tl.exp2(s - lse[:, None]), 0.0)",
        "w = tl.where(inside[:, None], tl.exp2(s - lse[:, None]), 0.0)",
    ),
    "maximum of a bin from its last tile": in_kernel(
        "columns.py", "largest = tl.maximum(largest, tl.max(pairs, 1))", "largest = tl.max(pairs, 1)"
    ),
    "weights near the query by another product": in_kernel(
        "neighbours.py",
        "products = tl.dot(q, tl.trans(k), input_precision=PRECISION)",
        "products = tl.sum(q.to(tl.float32)[:, None, :] * k.to(tl.float32)[None, :, :], 2)",
    ),
    "spread around no mean": in_kernel("spread.py", ".to(tl.float32) - mean[:, None]", ".to(tl.float32)"),
    "ids of another pairing": in_kernel(
        "matches.py", "pairing * num_keys + columns", "pairing * num_queries + columns"
    ),
    "a group of columns one place too far": in_kernel(
        "columns.py", "bin_at + (left - first_column) // GROUP", "bin_at + left // GROUP"
    ),
    "local weight of one side": in_kernel("neighbours.py", "tl.abs(distance) <= reach", "distance <= reach"),
    "an empty bin takes its neighbour's sum": in_kernel(
        "layout.py", "inside = ramp < count[:, None]", "inside = ramp < count[:, None].clamp(min=1)"
    ),
}

SEEDED_BUGS = TRITON | ATTENTION | CUDA | KERNEL_PASSES | MATRIX | RECORDING | HEADS | ATLAS | SURVEY | EXPLORER
SEEDED_BUGS |= TELEMETRY

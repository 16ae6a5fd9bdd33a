/**
 * All heads ranked by the current question.
 *
 * In: the state and the shown trace. Out: a value per head, and the heads in order; listeners are called when they change.
 * Requests are cancelled when the question changes.
 */

import { createHeadLoader, type HeadLoader } from "../heads/head_loader";
import { passesFilters, type ScoredHead } from "../heads/scored_heads";
import { describeError } from "../server/requests";
import { paths, type HeadEffect, type Meta, type TraceHead } from "../server/protocol";
import { isAbortError, type Transport } from "../server/transport";
import { isAvailable, type HeadId, type State } from "../state";
import { getPinnedLink, getQuestion, type HeadQuestion } from "./head_question";
import { LinkValues } from "./link_values";
import type { LinkAnswer } from "./sentences";

export interface RankedHead {
  readonly layer: number;
  readonly head: number;
  readonly value: number;
  /** The key that a pinned query attends to most, or the query that attends most to a pinned key. */
  readonly position: number | null;
}

export interface HeadRanking {
  readonly question: HeadQuestion;
  /** Heads that pass the filters, the strongest first. */
  readonly list: readonly RankedHead[];
  readonly pending: boolean;
  /** Why there is no answer; "" otherwise. */
  readonly problem: string;
  /** All heads whose labels and scores are read. */
  readonly scored: readonly ScoredHead[];
  /** undefined while it is not known; null where the question has no value. */
  getValue(layer: number, head: number): number | null | undefined;
  /** The answer of a head to what is pinned, whatever the question; null where it is not known. */
  getLinkAnswer(layer: number, head: number): LinkAnswer | null;
  getLabel(layer: number, head: number): string | undefined;
  /** What a label means; "" where that is not known. */
  getMeaning(label: string): string;
  /** Whether a head passes the filters. */
  isListed(layer: number, head: number): boolean;
  subscribe(listener: () => void): () => void;
}

export class HeadRankingStore implements HeadRanking {
  question: HeadQuestion = { kind: "label" };
  list: readonly RankedHead[] = [];
  readonly #listeners = new Set<() => void>();
  readonly #link: LinkValues;
  readonly #other: LinkValues;
  readonly #scores: HeadLoader;
  readonly #effects = new Map<string, number>();
  #byId = new Map<string, ScoredHead>();
  #ablating: AbortController | undefined;
  #ablationProblem = "";
  #state: State | null = null;
  #meta: Meta | null = null;
  #key = "";
  #wantsAllScores = false;

  constructor(
    private readonly transport: Transport,
    /** The heads that can be opened; null is all. */
    private readonly availableHeads: readonly HeadId[] | null,
    /** The meta of the trace that B is compared from, if it is loaded. */
    private readonly getMeta: (trace: string) => Meta | undefined,
    signal: AbortSignal,
  ) {
    const change = (): void => this.#refresh();
    this.#link = new LinkValues(transport, change);
    this.#other = new LinkValues(transport, change);
    this.#scores = createHeadLoader(transport, change);
    signal.addEventListener("abort", () => this.#cancel());
  }

  get pending(): boolean {
    const { kind } = this.question;
    if (kind === "label" || kind === "score") return this.#scores.scores.filter((one) => one !== undefined).length < (this.#meta?.layers.length ?? 0);
    if (kind === "ablation") return this.#ablating !== undefined;
    return this.#link.pending || (kind === "difference" && this.#other.pending);
  }

  get problem(): string {
    const { kind } = this.question;
    if (kind === "label" || kind === "score") return this.#scores.problem;
    return kind === "ablation" ? this.#ablationProblem : this.#link.problem || (kind === "difference" ? this.#other.problem : "");
  }

  get scored(): readonly ScoredHead[] {
    return this.#scores.heads;
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Read the labels and scores of all layers, for suggestions with counts. */
  loadScores(): void {
    this.#wantsAllScores = true;
    if (this.#meta) this.#scores.load(this.#meta, null, this.#state?.layer ?? 0);
  }

  update(state: State, shown: TraceHead | null): void {
    const meta = shown?.meta ?? null;
    const question = getQuestion(state);
    const link = getPinnedLink(state);
    const key = JSON.stringify([meta?.trace, question, link, state.label, state.filter, state.layer, state.compare?.trace]);
    this.#state = state;
    if (key === this.#key && meta === this.#meta) return;
    if (meta !== this.#meta) this.#cancel();
    this.#key = key;
    this.#meta = meta;
    this.question = question;
    if (!meta) return this.#refresh();
    if (link) this.#link.load(meta, link, state.layer);
    else this.#link.cancel();
    const other = question.kind === "difference" && question.other.trace !== "" ? this.getMeta(question.other.trace) : undefined;
    if (other && link) this.#other.load(other, link, state.layer);
    else this.#other.cancel();
    if (question.kind === "ablation") this.#ablate(meta, question.method);
    else this.#stopAblation();
    const isScored = question.kind === "label" || question.kind === "score" || state.label !== "" || state.filter !== "";
    this.#scores.load(meta, null, state.layer, state.layer, isScored || this.#wantsAllScores ? undefined : 1);
    this.#refresh();
  }

  getValue(layer: number, head: number): number | null | undefined {
    const { question } = this;
    const scored = this.#byId.get(`${layer},${head}`);
    switch (question.kind) {
      case "label":
        return scored && getLabelStrength(scored);
      case "score":
        return scored && (scored.scores[question.score] ?? null);
      case "ablation":
        return this.#effects.get(`${question.method} ${layer},${head}`);
      case "link":
        return getValueOf(this.#link.getAnswer(layer, head));
      case "difference": {
        const { trace, layer: otherLayer, head: otherHead } = question.other;
        const one = getValueOf(this.#link.getAnswer(layer, head));
        const other = getValueOf(trace === "" ? this.#link.getAnswer(otherLayer, otherHead) : this.#other.getAnswer(layer, head));
        return one === undefined || other === undefined ? undefined : one === null || other === null ? null : one - other;
      }
    }
  }

  getLinkAnswer(layer: number, head: number): LinkAnswer | null {
    return this.#link.getAnswer(layer, head) ?? null;
  }

  getLabel(layer: number, head: number): string | undefined {
    return this.#byId.get(`${layer},${head}`)?.labels[0];
  }

  getMeaning(label: string): string {
    return this.#scores.scores.map((one) => one?.meanings[label]).find((one) => one) ?? "";
  }

  isListed(layer: number, head: number): boolean {
    const { label = "", filter = "" } = this.#state ?? {};
    return isAvailable(this.availableHeads, layer, head) && passesFilters(this.#byId.get(`${layer},${head}`), label, filter);
  }

  /** The head before or after another in the ranking; the first where it is not in it. */
  findNext(layer: number, head: number, step: number): RankedHead | undefined {
    const at = this.list.findIndex((one) => one.layer === layer && one.head === head);
    return this.list[at < 0 ? 0 : at + step];
  }

  #refresh(): void {
    this.#byId = new Map(this.#scores.heads.map((head) => [head.id.join(), head]));
    this.list = this.#rank();
    for (const listener of [...this.#listeners]) listener();
  }

  #rank(): readonly RankedHead[] {
    const { question } = this;
    const heads = (this.#meta?.layers ?? []).flatMap(({ heads: count }, layer) =>
      Array.from({ length: count }, (_, head) => ({ layer, head, value: this.getValue(layer, head) })),
    );
    const known = heads.flatMap(({ layer, head, value }) =>
      typeof value === "number" && this.isListed(layer, head)
        ? [{ layer, head, value, position: question.kind === "link" ? (this.#link.getAnswer(layer, head)?.position ?? null) : null }]
        : [],
    );
    // Equal heads stay in the order of layers.
    return known.sort((one, other) => getSortValue(question, other.value) - getSortValue(question, one.value));
  }

  /** What is already computed is kept, so going back to the question starts where it was left. */
  #ablate(meta: Meta, method: State["ablationMethod"]): void {
    if (this.#ablating) return;
    const count = meta.layers.reduce((sum, { heads }) => sum + heads, 0);
    if ([...this.#effects.keys()].filter((key) => key.startsWith(method)).length >= count) return;
    const controller = (this.#ablating = new AbortController());
    this.#ablationProblem = "";
    const read = async (): Promise<void> => {
      for await (const line of this.transport.stream<HeadEffect>(paths.ablateEach(), { trace: meta.trace, method }, controller.signal)) {
        if ("error" in line) throw new Error(line.error);
        this.#effects.set(`${method} ${line.layer},${line.head}`, line.effect);
        this.#refresh();
      }
    };
    void read()
      .catch((error: unknown) => {
        if (!isAbortError(error)) this.#ablationProblem = describeError(error);
      })
      .finally(() => {
        if (this.#ablating !== controller) return;
        this.#ablating = undefined;
        this.#refresh();
      });
  }

  #stopAblation(): void {
    this.#ablating?.abort();
    this.#ablating = undefined;
  }

  #cancel(): void {
    this.#link.cancel();
    this.#other.cancel();
    this.#scores.stop();
    this.#stopAblation();
    this.#effects.clear();
  }
}

function getValueOf(answer: LinkAnswer | null | undefined): number | null | undefined {
  return answer && answer.value;
}

/** Of a signed value the size counts, whichever its sign; of a condition "<" the smallest comes first. */
function getSortValue(question: HeadQuestion, value: number): number {
  if (question.kind === "difference") return Math.abs(value);
  return question.kind === "score" && question.rises ? -value : value;
}

/** How much each label says about a head, as in `attnscope.explorer.analysis.opening`. */
const SPECIFICITY: Readonly<Record<string, number>> = {
  ...{ induction: 1, duplicate: 0.9, agreement: 0.9, coreference: 0.9, previous: 0.6, next: 0.6 },
  ...{ local: 0.3, self: 0.3, broad: 0.2 },
};

/** How distinctive a head is: the score of its first label, without what it gives to the first token, and how specific the label is. */
export function getLabelStrength({ labels, scores }: Pick<ScoredHead, "labels" | "scores">): number {
  const label = labels[0] ?? "";
  const score = scores[`${label}_probe`] ?? scores[label === "broad" ? "evenness" : label] ?? 0;
  const others = label === "induction" || label === "duplicate" ? 1 : 1 - (scores["sink"] ?? 0);
  return score * others * (SPECIFICITY[label] ?? 0);
}

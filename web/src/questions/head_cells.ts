/** How the cells of the navigator show the answers to a question, and their legend. */

import { formatMeasure, formatWeightColumn } from "../format_numbers";
import { getLabelShape } from "../heads/label_badge";
import { formatScoreName } from "../heads/scored_heads";
import type { HeadCell } from "../panels/navigator";
import type { HeadQuestion } from "./head_question";
import type { HeadRanking } from "./head_ranking";

/** The ends of the colours: 0 to the largest value, or the same size on both sides of 0. */
export function getValueRange({ list, question }: Pick<HeadRanking, "list" | "question">): readonly [low: number, high: number] {
  const high = list.reduce((most, { value }) => Math.max(most, Math.abs(value)), 0);
  return [isSigned(question) ? -high : 0, high];
}

export function isSigned({ kind }: HeadQuestion): boolean {
  return kind === "ablation" || kind === "difference";
}

export function createCellReader(ranking: HeadRanking): (layer: number, head: number) => HeadCell {
  const { question } = ranking;
  const [, high] = getValueRange(ranking);
  return (layer, head) => {
    const value = ranking.getValue(layer, head);
    const faded = !ranking.isListed(layer, head);
    if (question.kind === "label") {
      const label = ranking.getLabel(layer, head);
      const isPlain = label === undefined || label === "mixed";
      const mark = isPlain ? "" : getLabelShape(label);
      return { share: isPlain ? 0 : 1, colour: label ?? "", mark, description: label ?? "", faded };
    }
    if (typeof value !== "number") return { share: 0, colour: "", mark: "", description: value === null ? "no value" : "", faded };
    const share = high > 0 ? Math.abs(value) / high : 0;
    return { share, colour: value < 0 ? "negative" : "positive", mark: "", description: describeValue(question, value), faded };
  };
}

/** "weight 0.945" */
function describeValue(question: HeadQuestion, value: number): string {
  return `${nameValue(question)} ${formatValue(question, value)}`;
}

export function nameValue(question: HeadQuestion): string {
  switch (question.kind) {
    case "label":
      return "strength";
    case "score":
      return formatScoreName(question.score);
    case "ablation":
      return "change of loss";
    case "difference":
      return "difference to B";
    case "link":
      return !question.link.key ? "largest weight" : question.link.query ? "weight" : "received";
  }
}

export function formatValue(question: HeadQuestion, value: number): string {
  const sign = isSigned(question) && value !== 0 ? (value < 0 ? "−" : "+") : "";
  const size = Math.abs(value);
  return sign + (size <= 1 ? formatWeightColumn(size) : formatMeasure(value < 0 && !sign ? value : size));
}

/** What the page of a watched run shows, and its address. */

import type { WatchInfo } from "./protocol";

export type RowOrder = "worst" | "layer";

export interface ViewState {
  readonly statistic: string;
  readonly order: RowOrder;
  /** The name of the chosen head; "" is the worst one. */
  readonly head: string;
}

const HEAD_PATTERN = /^[\w.-]{1,200}$/;

/** Read any fragment, with or without its `#`. */
export function readView(fragment: string): ViewState {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const head = fields.get("head") ?? "";
  return {
    statistic: fields.get("statistic") ?? "",
    order: fields.get("order") === "layer" ? "layer" : "worst",
    head: HEAD_PATTERN.test(head) ? head : "",
  };
}

/** The fragment of a view, without what is the default. */
export function writeView({ statistic, order, head }: ViewState): string {
  const fields = new URLSearchParams();
  if (statistic !== "") fields.set("statistic", statistic);
  if (order !== "worst") fields.set("order", order);
  if (head !== "") fields.set("head", head);
  return `#${fields.toString()}`;
}

/** The statistic of a view, or the first one if the run does not have it. */
export function getStatistic(info: WatchInfo, { statistic }: ViewState): WatchInfo["statistics"][number] {
  const found = info.statistics.find(({ name }) => name === statistic) ?? info.statistics[0];
  if (!found) throw new Error("a run without statistics");
  return found;
}

/** The indices of heads from top to bottom. */
export function getRows(info: WatchInfo, { order }: ViewState): readonly number[] {
  return order === "worst" ? info.order : info.heads.map((_, row) => row);
}

/** The index of the chosen head, or of the worst one; null in a run without heads. */
export function getChosenRow(info: WatchInfo, { head }: ViewState): number | null {
  const found = info.heads.findIndex(({ name }) => name === head);
  return found >= 0 ? found : (info.order[0] ?? null);
}

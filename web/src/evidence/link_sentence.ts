/** The pinned link in one sentence. */

import { formatCount, formatPercent } from "../format_numbers";
import { formatTitle, formatToken } from "../paint/token_text";

export interface LinkSentence {
  /** The text of the query or span of queries; undefined while unknown. */
  readonly query: string | undefined;
  readonly key: string | undefined;
  /** Tokens from the key back from the query; null between two texts. */
  readonly distance: number | null;
  readonly weight: number;
}

/** "“is” gives 63% to “cobalt”, 5,887 tokens back" */
export function describeLink({ query, key, distance, weight }: LinkSentence): string {
  return `${quote(query, "This query")} gives ${formatPercent(weight)} to ${quote(key, "this key")}${describeDistance(distance)}`;
}

function quote(text: string | undefined, unknown: string): string {
  if (text === undefined) return unknown;
  return `“${text.trim() === "" ? formatToken(text) : formatTitle(text, 40)}”`;
}

function describeDistance(distance: number | null): string {
  if (distance === null) return "";
  if (distance === 0) return ", the same token";
  const tokens = `${formatCount(Math.abs(distance))} ${Math.abs(distance) === 1 ? "token" : "tokens"}`;
  return `, ${tokens} ${distance > 0 ? "back" : "ahead"}`;
}

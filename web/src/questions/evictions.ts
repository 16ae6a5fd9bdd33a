/** Evictions from the KV cache as text: "keep 25% by received after 700". */

import { formatCount } from "../format_numbers";
import { clampEviction, POLICIES, type Eviction, type EvictionPolicy } from "../state";

export const POLICY_NAMES: Readonly<Record<EvictionPolicy, string>> = {
  received: "H2O: most attention received",
  window: "SnapKV: most from the last 64 tokens",
  recent: "StreamingLLM: first 4 and last tokens",
  expected: "Expected Attention",
  norm: "smallest norm",
  random: "baseline",
};
export const DEFAULT_KEEP = 25;

export function formatEviction({ by, keep, context }: Eviction): string {
  return `keep ${keep}% by ${by}${context === null ? "" : ` after ${formatCount(context)}`}`;
}

/** The evictions that a text may mean, by all policies that it names; null keeps all pairs. Empty where it means none. */
export function parseEvictions(text: string): readonly (Eviction | null)[] {
  const found = /^(?:keep|evict)\s*(?:(\d{1,3})\s*%?)?\s*(?:by\s*([a-z]*))?\s*(?:after\s*(\d{1,3}(?:,\d{3})*|\d{1,7}))?$/i.exec(text.trim());
  if (!found) return [];
  const [, keep = DEFAULT_KEEP, policy = "", context] = found;
  const after = context === undefined ? null : Number(context.replaceAll(",", ""));
  const matches = POLICIES.filter((by) => by.startsWith(policy.toLowerCase()));
  const evictions = matches.map((by) => clampEviction({ by, keep: Number(keep), context: after }));
  return found[1] === undefined && policy === "" ? [...evictions, null] : evictions;
}

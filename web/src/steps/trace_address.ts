/** The pair of an open trace as a fragment of the address of the page of steps. */

export interface TraceAddress {
  readonly trace: string;
  readonly layer: number;
  readonly head: number;
  readonly query: number;
  readonly key: number;
}

const FIELDS = { trace: /^[0-9a-f]{16,64}$/, layer: /^\d{1,4}$/, head: /^\d{1,4}$/, query: /^\d{1,7}$/, key: /^\d{1,7}$/ };

/** Null where the fragment names no pair of a trace. */
export function readTraceAddress(fragment: string): TraceAddress | null {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const isValid = Object.entries(FIELDS).every(([name, pattern]) => pattern.test(fields.get(name) ?? ""));
  if (fields.get("stage") !== "trace" || !isValid) return null;
  const readNumber = (name: string): number => Number(fields.get(name));
  return { trace: fields.get("trace") ?? "", layer: readNumber("layer"), head: readNumber("head"), query: readNumber("query"), key: readNumber("key") };
}

export function writeTraceAddress({ trace, layer, head, query, key }: TraceAddress): string {
  return `#stage=trace&trace=${trace}&layer=${layer}&head=${head}&query=${query}&key=${key}`;
}

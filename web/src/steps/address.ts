/** The settings and the pair as a fragment of the address, so that a lesson can link to them. */

import { DEFAULTS, getChoices, getHeadNames, type Settings, type StageName } from "./stages";

export interface Address {
  readonly settings: Settings;
  /** Counted from 0; null where the address does not say. */
  readonly query: number | null;
  readonly key: number | null;
}

/** Read any fragment, with or without its `#`; what is not valid is the default. */
export function readAddress(fragment: string): Address {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const stage = pick(fields.get("stage"), Object.keys(DEFAULTS) as StageName[]) ?? "hand";
  const defaults = DEFAULTS[stage];
  const numHeads = pick(Number(fields.get("heads")), getChoices(defaults).numHeads) ?? defaults.numHeads;
  const wide = { ...defaults, numHeads };
  const headDim = pick(Number(fields.get("d_k")), getChoices(wide).headDims) ?? (stage === "hand" ? 2 / numHeads : defaults.headDim);
  const choices = getChoices({ ...wide, headDim });
  const log2 = Number(fields.get("log2_temperature") ?? 0);
  const settings: Settings = {
    ...wide,
    headDim,
    divide: fields.get("divide") !== "no",
    temperature: log2 >= -2 && log2 <= 2 ? 2 ** (Math.round(4 * log2) / 4) : 1,
    mask: pick(fields.get("mask"), choices.masks) ?? defaults.mask,
    positions: pick(fields.get("positions"), choices.positions) ?? defaults.positions,
    head: readIndex(fields.get("head"), getHeadNames(wide).length) ?? 0,
    sentence: fields.get("text")?.trim().slice(0, 200) || defaults.sentence,
  };
  return { settings, query: readIndex(fields.get("query"), 1000), key: readIndex(fields.get("key"), 1000) };
}

/** The fragment, without what is the default. */
export function writeAddress(settings: Settings, query: number, key: number): string {
  const defaults = DEFAULTS[settings.stage];
  const fields = new URLSearchParams({ stage: settings.stage, query: String(query), key: String(key) });
  if (!settings.divide) fields.set("divide", "no");
  if (settings.temperature !== 1) fields.set("log2_temperature", String(Math.log2(settings.temperature)));
  if (settings.mask !== defaults.mask) fields.set("mask", settings.mask);
  if (settings.positions !== defaults.positions) fields.set("positions", settings.positions);
  if (settings.numHeads !== defaults.numHeads) fields.set("heads", String(settings.numHeads));
  if (settings.headDim !== defaults.headDim) fields.set("d_k", String(settings.headDim));
  if (settings.head !== 0) fields.set("head", String(settings.head));
  if (settings.stage === "sentence" && settings.sentence !== defaults.sentence) fields.set("text", settings.sentence);
  return `#${fields.toString()}`;
}

function pick<T>(value: unknown, choices: readonly T[]): T | undefined {
  return choices.find((choice) => choice === value);
}

function readIndex(text: string | null, count: number): number | null {
  return text !== null && /^\d{1,3}$/.test(text) && Number(text) < count ? Number(text) : null;
}

// What a published site consists of: the manifest, and the index of each layer. `explorer/static_site` writes both.
import type { Meta, Opening, RotaryPair, Session } from "../server/protocol";
import { ResponseError } from "../server/transport";

const FORMAT = "attnscope site";
const VERSION = 1;

export type DataType = "f32" | "f16" | "bf16" | "u32";
export type ByteRange = readonly [offset: number, length: number];

/** An array (rows, width) of an archive, without compression. */
export interface StoredArray {
  readonly offset: number;
  readonly dtype: DataType;
  readonly rows: number;
  readonly width: number;
}

/** A file that holds responses, each compressed, and arrays. null is a response without content. */
export interface ArchiveIndex {
  readonly file: string;
  readonly responses: Readonly<Record<string, ByteRange | null>>;
  readonly arrays: Readonly<Record<string, StoredArray>>;
}

export type ScoreStep =
  | { readonly kind: "softcap"; readonly cap: number }
  | { readonly kind: "temperature"; readonly value: number }
  | { readonly kind: "alibi"; readonly slope: number; readonly offset: number };

/** Rows [top, bottom) and columns [left, right) with lowest <= column - row <= highest. */
export type Region = readonly [top: number, bottom: number, left: number, right: number, lowest: number, highest: number];

/** How weights are computed from queries and keys. */
export interface ScoreRule {
  readonly scale: number;
  readonly steps: readonly ScoreStep[];
  readonly regions: readonly Region[];
}

export interface HeadIndex extends ArchiveIndex {
  /** null where all weights are stored instead. */
  readonly rule: ScoreRule | null;
  readonly key_head?: number;
}

export interface LayerIndex {
  readonly layer: ArchiveIndex;
  readonly heads: Readonly<Record<string, HeadIndex>>;
}

export interface TraceDescription {
  readonly meta: Meta;
  readonly opening: Opening;
  readonly rotary: readonly Omit<RotaryPair, "product">[] | null;
  /** The number of the texts of queries and keys, of each layer. */
  readonly axes: readonly (readonly [query: number | null, key: number | null])[];
  readonly index: ArchiveIndex;
}

export interface Manifest {
  readonly format: string;
  readonly version: number;
  readonly session: Session;
  readonly traces: Readonly<Record<string, TraceDescription>>;
  readonly files: Readonly<Record<string, readonly [bytes: number, sha256: string]>>;
}

/** The manifest, if this script can read the site that it describes. */
export function checkManifest(found: unknown): Manifest {
  const manifest = found as Partial<Manifest> | null;
  if (manifest?.format !== FORMAT) throw new ResponseError("manifest.json does not describe a site of AttnScope.", 409);
  if (manifest.version !== VERSION)
    throw new ResponseError(`This site has format ${String(manifest.version)}, and its script reads format ${VERSION}: the files are of two publications. Reload the page, or publish again.`, 409);
  return manifest as Manifest;
}

/** What the parts of the picture view are given. */

import type { ViewContext } from "../panels/view_context";
import type { Patches, PatchSide, PictureMap, Sink, TraceHead, TraceImage } from "../server/protocol";
import type { ResponseCache } from "../server/requests";
import type { State } from "../state";
import type { Patch } from "./patch_values";
import type { Chosen, PictureState } from "./picture_state";

export interface PicturePanelOptions {
  readonly context: ViewContext;
  readonly shown: TraceHead;
  readonly state: State;
  readonly local: PictureState;
  readonly image: TraceImage | undefined;
  readonly cache: ResponseCache;
  set(change: Partial<PictureState>): void;
  /** From one patch to another; the same twice is a click. */
  choose(from: Patch, to: Patch): void;
  pinPosition(position: number): void;
  setPatches(patches: Patches | null): void;
}

export interface LayerOptions extends PicturePanelOptions {
  readonly image: TraceImage;
}

export interface LoadedOptions extends LayerOptions {
  readonly patches: Patches;
  /** Of the values. */
  readonly side: PatchSide;
  readonly chosen: Chosen;
  readonly isReady: boolean;
  readonly sinks: readonly Sink[];
  readonly map: PictureMap;
  readonly values: Float32Array;
  readonly photo: HTMLCanvasElement | null;
  readonly frame: number;
}

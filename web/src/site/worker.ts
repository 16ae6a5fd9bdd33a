/** The script of a worker: computes tiles and weights of blocks, one job at a time. */

import { computeTile, computeWeights } from "./attention";
import type { Job, JobResult } from "./worker_pool";

self.onmessage = ({ data }: MessageEvent<{ job: Job }>): void => {
  const { job } = data;
  let result: JobResult;
  try {
    result = { body: job.tile ? computeTile(job.block, job.tile) : (computeWeights(job.block).buffer as ArrayBuffer) };
  } catch (error) {
    result = { error: String(error) };
  }
  self.postMessage({ result }, { transfer: "body" in result && result.body ? [result.body] : [] });
};

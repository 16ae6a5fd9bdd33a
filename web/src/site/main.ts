/** Entry point of a published site: reads the manifest, and starts the explorer on its archives. */

import { createPageHost } from "../host";
import { later } from "../later";
import { ResponseError, type Transport } from "../server/transport";
import { startExplorer } from "../start_explorer";
import { checkManifest } from "./manifest";
import { RangeReader } from "./range_reader";
import { createSiteTransport } from "./site_transport";
import { createPageWorker, WorkerPool } from "./worker_pool";

/** The manifest is requested again if that failed, when the explorer tries again. */
function openSite(): Transport {
  let opened: Promise<Transport> | null = null;
  const open = (): Promise<Transport> =>
    (opened ??= loadTransport().catch((error: unknown) => {
      opened = null;
      throw error;
    }));
  return {
    json: async (path, signal) => (await open()).json(path, signal),
    bytes: async (path, signal) => (await open()).bytes(path, signal),
    post: async (path, body, signal) => (await open()).post(path, body, signal),
    async *stream(path, body, signal) {
      yield* (await open()).stream(path, body, signal);
    },
  };
}

async function loadTransport(): Promise<Transport> {
  const answer = await fetch("manifest.json");
  if (!answer.ok) throw new ResponseError(`The host answered ${answer.status} for manifest.json: the site is not completely uploaded.`, answer.status);
  const manifest = checkManifest(await answer.json());
  return createSiteTransport(manifest, new RangeReader(manifest.files), new WorkerPool(createPageWorker));
}

const root = document.getElementById("explorer");
if (root) void startExplorer(root, openSite(), createPageHost("site"), () => Promise.resolve(later));

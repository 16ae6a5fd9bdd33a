/**
 * The token that every request carries in a header.
 *
 * The address that the server prints has a token in its fragment, which browsers do not send. The page removes it from the address, and
 * exchanges it for the token of the run, because it may work only once. That one is stored for this origin, which includes the port;
 * a cookie would be sent to every port of the host.
 */

import { loadItem, saveItem } from "../browser_storage";

const ITEM = "token";
/** The fragment of a link may follow that of the token. */
const FRAGMENT = /^#token=(\w+)(#.*)?$/;

/** The part of a window that this needs; tests pass their own. */
export interface AccessWindow {
  readonly history: Pick<History, "replaceState">;
  readonly location: Pick<Location, "hash" | "pathname" | "reload">;
  addEventListener(type: "popstate", listener: (event: Event) => void): void;
}

let addressToken: string | null = null;
/** For browsers that do not store anything. */
let runToken: string | null = null;

/** Take the token from the address, before others read that; the function returns the token of the run. */
export function openAccess(page: AccessWindow, exchange: (token: string) => Promise<string>): () => Promise<string | null> {
  const { history, location } = page;
  const [, token, rest = ""] = FRAGMENT.exec(location.hash) ?? [];
  if (token !== undefined) {
    addressToken = token;
    history.replaceState(null, "", location.pathname + rest);
  }
  // An address that is pasted over that of this page does not load it again.
  page.addEventListener("popstate", (event) => {
    if (!FRAGMENT.test(location.hash)) return;
    event.stopImmediatePropagation();
    location.reload();
  });
  let pending: Promise<void> | undefined;
  const exchangeOnce = async (): Promise<void> => {
    if (addressToken === null) return;
    runToken = await exchange(addressToken);
    addressToken = null;
    saveItem("local", ITEM, runToken);
  };
  return async () => {
    pending ??= exchangeOnce().finally(() => (pending = undefined));
    await pending;
    return loadItem("local", ITEM) ?? runToken;
  };
}

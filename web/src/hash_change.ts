/** Calls back when another fragment is opened over the page's own, for example one that was pasted. */

import { useEffect } from "preact/hooks";

/** The fragment is that of the event: `location.hash` may be what the page has written since. */
export function useHashChange(follow: (hash: string) => void): void {
  useEffect(() => {
    const listen = ({ newURL }: HashChangeEvent): void => follow(new URL(newURL).hash);
    addEventListener("hashchange", listen);
    return () => removeEventListener("hashchange", listen);
  }, []);
}

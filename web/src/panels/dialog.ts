/** A modal dialog with a heading, a close button, and a backdrop that closes it. */

import { button, element, type Child } from "./dom";

/** `name` begins the id of its heading. */
export function createDialog(name: string, title: string, className: string, ...content: readonly Child[]): HTMLDialogElement {
  const dialog = element(
    "dialog",
    { class: className, "aria-labelledby": `${name}-title` },
    element(
      "div",
      { class: "help-head" },
      element("h2", { id: `${name}-title` }, title),
      button("Close", () => dialog.close(), { class: "help-close" }),
    ),
    ...content,
  );
  // A click on the backdrop has the dialog itself as its target.
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return dialog;
}

// A button on each block of code that copies it, without the prompts of a terminal session.
document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return; // a page that is opened from a file in some browsers
  for (const block of document.querySelectorAll("div.highlight")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy this code");
    button.addEventListener("click", async () => {
      const lines = block.querySelector("pre").textContent.trimEnd().split("\n");
      const commands = lines.filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
      await navigator.clipboard.writeText((commands.length ? commands : lines).join("\n"));
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.append(button);
  }
});

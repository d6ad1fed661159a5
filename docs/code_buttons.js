// The theme adds a part with a copy button to every block of code. Each gets a name of its own, for screen readers.
new MutationObserver(() =>
  document.querySelectorAll("nav.md-code__nav:not([aria-label])").forEach((nav) => {
    const block = nav.querySelector("[data-clipboard-target]");
    const number = block ? block.dataset.clipboardTarget.replace(/\D/g, "") : "";
    nav.setAttribute("aria-label", `Copy code block ${Number(number) + 1}`);
  })
).observe(document.body, { childList: true, subtree: true });

// The images tab in the browser: prompts of the first screen, keys, shapes, pictures that go on into the editor, and names
// for what Gradio leaves without one.
(() => {
  const tab = () => document.querySelector("#images");
  const isShown = () => document.documentElement.dataset.tab === "images";
  const cancel = () => document.querySelector("#cancel:enabled");
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));

  // Reports `found()` as soon as it is something; gives up after some seconds.
  async function appeared(found) {
    for (let tries = 0; tries < 100; tries++) {
      if (found()) return found();
      await wait(100);
    }
    return null;
  }

  window.studio = Object.assign(window.studio ?? {}, {
    images: {
      unfinished: '<div class="note">Nothing was drawn; the message says why.</div>',

      // The values of the picture editor and of what it is in.
      toEditor(picture) {
        appeared(() => document.querySelector("#source-picture canvas")).then((canvas) =>
          canvas?.scrollIntoView({ block: "center" }),
        );
        return [
          { background: picture, layers: [], composite: picture },
          { __type__: "update", open: true },
        ];
      },
      async paint() {
        const brush = await appeared(() => {
          const button = document.querySelector("#source-picture button[aria-label=Brush]");
          return document.querySelector("#source-picture button[aria-label='Clear canvas']") && button;
        });
        await wait(600); // a picture that arrives takes the tool back
        if (brush && !brush.classList.contains("highlight")) brush.click();
      },
      download(file) {
        if (!file?.url) return;
        const link = Object.assign(document.createElement("a"), { href: file.url, download: "pictures.zip" });
        document.body.append(link);
        link.click();
        link.remove();
      },
    },
  });

  document.addEventListener("click", (event) => {
    const idea = event.target.closest?.("[data-draw]");
    if (idea) {
      const prompt = document.querySelector("#prompt textarea");
      prompt.value = idea.dataset.draw;
      prompt.dispatchEvent(new Event("input", { bubbles: true }));
      setTimeout(() => document.querySelector("#generate:enabled")?.click());
    }
    if (event.target.closest?.("#reuse, #verify")) studio.closeDrawers(); // what they change is beside the panel
  });
  let pause;
  document.addEventListener("input", (event) => {
    if (!event.target.closest?.("#prompt")) return;
    clearTimeout(pause);
    pause = setTimeout(() => document.querySelector("#count-prompt")?.click(), 300); // the typing pauses
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || !isShown()) return;
    if (document.querySelector(":popover-open") || !cancel()) return;
    event.preventDefault();
    cancel().click();
  });

  // An emptied number would become 0: it gets its value back.
  document.addEventListener(
    "focus",
    (event) => {
      if (event.target.type === "number" && event.target.closest?.("#images")) event.target.dataset.before = event.target.value;
    },
    true,
  );
  document.addEventListener(
    "blur",
    (event) => {
      const number = event.target;
      if (number.type !== "number" || number.value !== "" || !number.closest?.("#images")) return;
      number.value = number.dataset.before;
      number.dispatchEvent(new Event("input", { bubbles: true }));
    },
    true,
  );

  // After each change of the tab ------------------------------------------------------------------------------------------
  const says = (element, attribute, text) => {
    if (element && element.getAttribute(attribute) !== text) element.setAttribute(attribute, text);
  };
  let said = "";
  function look() {
    if (!tab()) return;
    says(document.querySelector("#prompt textarea"), "aria-label", "Prompt");
    const line = document.querySelector("#image-progress .note");
    says(document.querySelector("#picture img"), "alt", line?.dataset.shows ?? "a picture that forms");
    for (const label of document.querySelectorAll("#shape label")) {
      const [width, height] = label.querySelector("input").value.split(" x ").map(Number);
      const scale = 14 / Math.max(width, height);
      label.style.setProperty("--w", `${Math.round(width * scale)}px`);
      label.style.setProperty("--h", `${Math.round(height * scale)}px`);
    }
    // Generate and Cancel take each other's place, and the focus goes along.
    const runs = Boolean(cancel());
    if (runs !== (tab().dataset.runs === "true")) {
      tab().dataset.runs = runs;
      const [from, to] = runs ? ["#generate", "#cancel"] : ["#cancel", "#generate"];
      const active = document.activeElement;
      if (active === document.body || active?.matches(from)) document.querySelector(to)?.focus({ preventScroll: true });
    }
    const text = line && !line.querySelector(".bar") ? line.textContent : "";
    if (text && text !== said && isShown()) studio.say(text);
    said = text;
  }
  let isAsked = false;
  new MutationObserver(() => {
    if (isAsked || !isShown()) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      look();
    });
  }).observe(document, { subtree: true, childList: true, characterData: true, attributeFilter: ["disabled", "data-tab", "src"] });
})();

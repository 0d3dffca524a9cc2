// The message box: its name, its keys, the text that is kept while one is elsewhere, files as text, and how much of the
// context is used.
(() => {
  const CELLS = 10;
  const CHARACTERS_PER_TOKEN = 3.6; // of English, until the conversation says better
  const MOST_BYTES = 200_000; // of a file: ten times what a message may have, so that the refusal says how long it is
  const { chat } = studio;
  const field = () => document.querySelector("#message textarea");
  const isShown = () => document.documentElement.dataset.tab === "chat";

  function name() {
    const text = field();
    if (!text || text.dataset.named) return;
    text.dataset.named = "true";
    // Gradio's label also holds the buttons, whose words would become part of the box's name.
    text.setAttribute("aria-label", "Message");
    text.setAttribute("aria-describedby", "context");
    if (matchMedia("(hover: hover)").matches && isShown()) text.focus();
  }

  // Context -----------------------------------------------------------------------------------------------------------
  function count() {
    const place = document.querySelector("#context");
    if (!place || !chat.facts) return;
    const last = chat.value.findLast((entry) => entry.metadata?.id > 0);
    const used = last?.metadata.id ?? 0;
    const characters = chat.value.reduce((sum, entry) => sum + (entry.content?.[0]?.text?.length ?? 0), 0);
    const read = used - chat.pictures.shown();
    const each = read > 20 && characters > 40 ? characters / read : CHARACTERS_PER_TOKEN;
    const typed = field()?.value.length ?? 0;
    const total = used + (typed ? Math.ceil(typed / each) : 0) + chat.pictures.tokens();
    const { context } = chat.facts;
    const share = Math.min(1, total / context);
    const cells = Array.from({ length: CELLS }, (_, at) => {
      const part = Math.max(0, Math.min(1, share * CELLS - at));
      return `<i style="--part:${Math.round(part * 100)}%"></i>`;
    }).join("");
    const about = typed ? "about " : "";
    const over = total > context ? " · the oldest messages will be dropped" : "";
    const html = `<span class="cells" aria-hidden="true">${cells}</span><span class="num">${about}${total.toLocaleString(
      "en",
    )} of ${context.toLocaleString("en")}<span class="long"> tokens${over}</span></span>`;
    if (place.dataset.html !== html) {
      place.dataset.html = html;
      place.innerHTML = html;
      place.title = "Tokens of the model's context that this conversation takes";
    }
  }

  // A value that Gradio's field takes as typed.
  function type(text) {
    const box = field();
    box.value = text;
    box.dispatchEvent(new Event("input", { bubbles: true }));
  }

  // Files ---------------------------------------------------------------------------------------------------------------
  async function paste(file) {
    if (!file) return;
    if (file.size > MOST_BYTES) return studio.tell(`${file.name} is too long for a message.`);
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    } catch {
      return studio.tell(`${file.name} is not a text.`);
    }
    if (text.includes("\0")) return studio.tell(`${file.name} is not a text.`);
    const before = field().value;
    type(`${before}${before && !before.endsWith("\n") ? "\n\n" : ""}${file.name}:\n\n${text}`);
    field().focus();
  }
  // Says something under the box for a while.
  studio.tell = (text) => {
    const line = document.querySelector("#chat-hint .hint");
    if (!line) return;
    line.dataset.usual ??= line.innerHTML;
    line.textContent = text;
    line.classList.add("said");
    studio.say(text);
    clearTimeout(studio.tell.timer);
    studio.tell.timer = setTimeout(() => {
      line.innerHTML = line.dataset.usual;
      line.classList.remove("said");
    }, 6_000);
  };
  const holdsFile = (event) => event.dataTransfer?.types.includes("Files") && event.target.closest?.("#talk");
  document.addEventListener("dragover", (event) => {
    if (holdsFile(event)) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    if (!holdsFile(event)) return;
    event.preventDefault();
    const files = [...event.dataTransfer.files];
    const pictures = files.filter(chat.pictures.takes);
    if (pictures.length) pictures.forEach(chat.pictures.add);
    else paste(files[0]);
  });
  document.addEventListener("change", (event) => {
    if (event.target.id !== "paste-file") return;
    paste(event.target.files[0]);
    event.target.value = "";
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-do=file]")) document.querySelector("#paste-file").click();
  });

  // Keys ------------------------------------------------------------------------------------------------------------------
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || !isShown()) return;
    if (document.querySelector(":popover-open")) return;
    const stop = document.querySelector("#message .stop-button");
    if (!stop) return;
    event.preventDefault();
    stop.click();
    field()?.focus();
  });
  document.addEventListener("input", (event) => {
    if (event.target !== field()) return;
    chat.list.keepDraft(event.target.value);
    count();
  });
  // An emptied number would become the smallest one.
  document.addEventListener(
    "blur",
    (event) => {
      const number = event.target;
      if (number.type !== "number" || number.value !== "" || !number.closest?.("#chat-settings")) return;
      const usual = chat.settings.usual(number.closest(".block")?.id);
      if (usual === undefined) return;
      number.value = usual;
      number.dispatchEvent(new Event("input", { bubbles: true }));
    },
    true,
  );

  new MutationObserver(name).observe(document, { subtree: true, childList: true });
  new MutationObserver(() => {
    if (isShown() && matchMedia("(hover: hover)").matches) field()?.focus();
  }).observe(document.documentElement, { attributeFilter: ["data-tab"] });
  let wasGrowing = false;
  chat.on("changed", () => {
    count();
    const grows = chat.isGrowing();
    if (grows && !wasGrowing) chat.list.keepDraft(field()?.value ?? "");
    wasGrowing = grows;
  });
  chat.on("started", () => setTimeout(count));
  document.addEventListener("attached", count);
})();

// What stands under each message: its buttons, the versions of an answer, the figures of its computation. Also what
// Gradio's chatbot lacks for screen readers: an answer is spoken sentence by sentence, and not at every redraw.
(() => {
  const SPOKEN_MS = 1_500; // between two announcements
  const { chat } = studio;
  const escape = (text) =>
    text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
  const icon = (path) => `<svg class="i" viewBox="0 0 24 24" aria-hidden="true">${path}</svg>`;
  const button = (action, name, path) =>
    `<button class="icon" type="button" data-do="${action}" aria-label="${name}" title="${name}">${icon(path)}</button>`;
  const ICONS = {
    copy: '<rect x="9" y="9" width="11" height="11" rx="2"/><path d="M5 15H4V5a1 1 0 0 1 1-1h10v1"/>',
    retry: '<path d="M20 11a8 8 0 1 0-2.3 6.2"/><path d="M20 5v6h-6"/>',
    edit: '<path d="m4 20 1-4L16.5 4.5a2.1 2.1 0 0 1 3 3L8 19z"/>',
    undo: '<path d="M9 7 4.5 11.5 9 16"/><path d="M5 11.5h9a5 5 0 0 1 0 10h-2"/>',
    more: '<path d="M5 12h13M13 6l6 6-6 6"/>',
    before: '<path d="m15 6-6 6 6 6"/>',
    next: '<path d="m9 6 6 6-6 6"/>',
    done: '<path d="m5 12.5 4.5 4.5L19 7.5"/>',
  };

  const log = () => document.querySelector("#conversation [role=log]");
  const rows = () => [...document.querySelectorAll("#conversation .message-row")];
  const typed = () => document.querySelector("#message textarea");

  function foot(group, isLast) {
    const note = group.note
      ? `<small class="note${group.isGrowing ? " growing" : ""}">${escape(group.note)}</small>`
      : "";
    if (group.isGrowing) return note;
    const which = group.role === "user" ? "question" : "answer";
    const { shown = 0, answers = [] } = chat.list.versions(group.first) ?? {};
    const versions =
      answers.length > 1
        ? `<span class="versions">${button("before", "Version before", ICONS.before)}<span class="num">${shown + 1} / ${
            answers.length
          }</span>${button("next", "Next version", ICONS.next)}</span>`
        : "";
    return [
      versions,
      button("copy", `Copy ${which}`, ICONS.copy),
      isLast && which === "answer" ? button("retry", "Retry: another answer", ICONS.retry) : "",
      button("edit", `Edit ${which}`, ICONS.edit),
      isLast && which === "answer" ? button("continue", "Continue answer", ICONS.more) : "",
      isLast && which === "answer" ? button("undo", "Undo: back to the question", ICONS.undo) : "",
      note,
    ].join("");
  }

  function draw() {
    const groups = chat.groups();
    const found = rows();
    const region = log();
    if (region && region.ariaLive !== "off") {
      region.ariaLive = "off";
      region.ariaLabel = "Conversation";
      region.tabIndex = 0;
    }
    document.querySelector("#talk")?.classList.toggle("empty", !groups.length);
    document.querySelector("#talk")?.classList.toggle("growing", chat.isGrowing());
    for (const labelled of document.querySelectorAll("#conversation [data-testid][aria-label]")) {
      labelled.removeAttribute("aria-label"); // the whole message again, where no label is allowed
    }
    for (const code of document.querySelectorAll("#conversation pre:not([tabindex])")) code.tabIndex = 0;
    for (const unnamed of document.querySelectorAll("#conversation .message button:not([aria-label], [title])")) {
      if (!unnamed.textContent.trim()) unnamed.setAttribute("aria-label", "Copy code");
    }
    if (found.length !== groups.length) return;
    groups.forEach((group, at) => {
      const html = foot(group, at === groups.length - 1);
      let element = found[at].querySelector(":scope > .foot");
      if (!element) {
        element = document.createElement("div");
        element.className = "foot";
        found[at].append(element);
      }
      if (element.dataset.html === html) return;
      const focused = element.contains(document.activeElement) && document.activeElement.dataset.do;
      element.dataset.html = html;
      element.innerHTML = html;
      if (focused) element.querySelector(`[data-do="${focused}"]`)?.focus();
    });
  }
  let isDrawing = false;
  const drawSoon = () => {
    if (isDrawing) return;
    isDrawing = true;
    queueMicrotask(() => {
      isDrawing = false;
      draw();
    });
  };

  // A new question is scrolled to, also where the visitor has scrolled up.
  const toEnd = () => requestAnimationFrame(() => log()?.scrollTo(0, log().scrollHeight));

  // Speech ------------------------------------------------------------------------------------------------------------
  let spoken = { first: -1, until: 0, at: 0 };
  function speak() {
    const last = chat.groups().at(-1);
    if (last?.role !== "assistant") return;
    if (last.first !== spoken.first) spoken = { first: last.first, until: 0, at: 0 };
    const written = studio.asWritten(last.text);
    const ends = [...written.matchAll(/[.!?…:](?=\s)|\n/g)].at(-1);
    const until = last.isGrowing ? (ends?.index ?? -1) + 1 : written.length;
    if (until <= spoken.until || (last.isGrowing && Date.now() < spoken.at + SPOKEN_MS)) return;
    studio.say(written.slice(spoken.until, until));
    spoken = { first: last.first, until, at: Date.now() };
  }
  let asked = false; // by this page since it was loaded: what was restored is not spoken

  chat.on("changed", (before) => {
    const questions = (value) => value.filter((entry) => entry.role === "user").length;
    if (questions(chat.value) > questions(before)) toEnd();
    asked ||= chat.isGrowing();
    if (asked) speak();
    if (!chat.isGrowing()) asked = false;
    drawSoon();
  });
  new MutationObserver((changes) => {
    if (changes.some(({ target }) => target.closest?.("#talk"))) drawSoon();
  }).observe(document, { subtree: true, childList: true, attributeFilter: ["aria-label"] });

  // Buttons -------------------------------------------------------------------------------------------------------------
  function edit(row, group) {
    const isQuestion = group.role === "user";
    row.querySelector(".edit")?.remove();
    const form = document.createElement("form");
    form.className = "edit";
    form.innerHTML = `<textarea aria-label="Edit ${isQuestion ? "question" : "answer"}" rows="2"></textarea>
      <div class="row"><button class="btn main" type="submit">${isQuestion ? "Submit" : "Save"}</button>
      <button class="btn" type="button" data-do="cancel">Cancel</button></div>`;
    const field = form.querySelector("textarea");
    field.value = studio.asWritten(group.text);
    const close = () => {
      form.remove();
      row.classList.remove("edited");
      row.querySelector("[data-do=edit]")?.focus();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (chat.isGrowing()) return;
      close();
      if (isQuestion) {
        chat.list.forgetVersions(group.first);
        chat.command({ do: "edit", index: group.first, text: field.value });
        typed()?.focus();
      } else chat.draw({ do: "rewrite", index: group.last, text: field.value });
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    form.querySelector("[data-do=cancel]").addEventListener("click", close);
    row.classList.add("edited");
    row.prepend(form);
    field.focus();
  }

  async function copy(element, group) {
    await navigator.clipboard.writeText(group.text);
    element.innerHTML = icon(ICONS.done);
    studio.say("Copied.");
    setTimeout(() => {
      element.innerHTML = icon(ICONS.copy);
    }, 2_000);
  }

  function undo(groups) {
    const question = groups.findLast((group) => group.role === "user");
    const draft = typed()?.value ?? "";
    const asked = studio.asWritten(question.text);
    chat.list.forgetVersions(question.first);
    chat.pictures.set(chat.pictures.of(question.entry));
    chat.set({ entries: chat.value.slice(0, question.first), box: draft.trim() ? `${asked}\n\n${draft}` : asked });
    typed()?.focus();
  }

  document.addEventListener("click", (event) => {
    const idea = event.target.closest?.("[data-ask]");
    if (idea) {
      chat.command({ do: "ask", text: idea.dataset.ask });
      typed()?.focus();
      return;
    }
    const element = event.target.closest?.("#conversation .foot [data-do]");
    if (!element) return;
    const groups = chat.groups();
    const row = element.closest(".message-row");
    const group = groups[rows().indexOf(row)];
    if (!group) return;
    if (element.dataset.do === "copy") copy(element, group);
    else if (chat.isGrowing()) return;
    else if (element.dataset.do === "edit") edit(row, group);
    else if (element.dataset.do === "retry") {
      chat.list.keepVersion(group);
      chat.command({ do: "retry", index: group.first });
      typed()?.focus();
    } else if (element.dataset.do === "undo") undo(groups);
    else if (element.dataset.do === "continue") {
      chat.command({ do: "continue", index: group.last });
      typed()?.focus();
    }
    else if (["before", "next"].includes(element.dataset.do)) {
      chat.list.showVersion(group, element.dataset.do === "next" ? 1 : -1);
    }
  });
})();

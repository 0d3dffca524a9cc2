// Conversations, kept in this browser alone: localStorage has one entry for each, sessionStorage the one that this
// browser tab shows. A conversation is {id, title, at, entries, settings, versions, draft}; one that was imported has
// `messages` instead of `entries` until the server has drawn it.
(() => {
  const { chat } = studio;
  const PREFIX = "hfjax.chat.";
  const SAVE_MS = 400;
  const MOST_BYTES = 5_000_000; // of an imported file: what localStorage holds
  const icon = (path) => `<svg class="i" viewBox="0 0 24 24" aria-hidden="true">${path}</svg>`;
  const DOTS = '<path d="M5 12h.01M12 12h.01M19 12h.01" stroke-width="2.6"/>';
  const escape = (text) => text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);

  let current = null;
  let kept = new Map(); // by id
  let retried = null; // the group of an answer that is asked for again
  let saving = 0;
  let asked = ""; // what is searched for

  const fresh = (settings = null) => ({
    id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`,
    title: "",
    at: Date.now(),
    entries: [],
    settings,
    versions: {},
    draft: "",
  });
  const isUsed = (each) => each.entries?.length > 0 || each.messages?.length > 0;
  const title = (each) => each.title || "New chat";
  const titleOf = (entries) => {
    const words = studio.asWritten(entries.find((entry) => entry.role === "user")?.content?.[0]?.text ?? "");
    const line = words.trim().split("\n")[0];
    return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
  };

  // Storage -----------------------------------------------------------------------------------------------------------
  function load() {
    const all = new Map();
    try {
      for (let at = 0; at < localStorage.length; at++) {
        const key = localStorage.key(at);
        if (!key.startsWith(PREFIX)) continue;
        const each = JSON.parse(localStorage.getItem(key));
        if (each && typeof each.id === "string" && PREFIX + each.id === key) all.set(each.id, each);
      }
    } catch {}
    return all;
  }
  function save(each = current) {
    clearTimeout(saving);
    saving = 0;
    if (!isUsed(each) && !each.draft) {
      kept.delete(each.id);
      try {
        localStorage.removeItem(PREFIX + each.id);
      } catch {}
      return;
    }
    kept.set(each.id, each);
    try {
      localStorage.setItem(PREFIX + each.id, JSON.stringify(each));
    } catch {
      studio.tell("This browser keeps no more: delete some conversations.");
    }
  }
  const saveSoon = () => {
    saving ||= setTimeout(save, SAVE_MS);
  };
  addEventListener("pagehide", () => {
    if (saving) save();
  });
  addEventListener("storage", (event) => {
    if (!event.key?.startsWith(PREFIX)) return;
    const mine = current;
    kept = load();
    if (mine) kept.set(mine.id, mine);
    draw();
  });

  function open(each) {
    if (saving) save();
    chat.pictures.open(current?.id, each.id);
    current = each;
    try {
      sessionStorage.setItem("hfjax.chat", each.id);
    } catch {}
    if (each.messages) {
      chat.value = [];
      chat.draw({ do: "load", messages: each.messages });
      chat.set({ box: each.draft ?? "", settings: chat.settings.all(each.settings) });
    } else {
      const last = each.entries.at(-1);
      const grew = last?.metadata?.status === "pending" && !last.metadata.title;
      const entries = grew ? [...each.entries.slice(0, -1), chat.complete(last, "stopped")] : each.entries;
      chat.set({ entries, box: each.draft ?? "", settings: chat.settings.all(each.settings) });
    }
    draw();
  }
  function close() {
    if (!chat.isGrowing()) return;
    current.entries = [...current.entries.slice(0, -1), chat.complete(current.entries.at(-1), "stopped")];
    save();
  }

  // The list ------------------------------------------------------------------------------------------------------------
  function day(at) {
    const midnight = new Date().setHours(0, 0, 0, 0);
    return at >= midnight ? "Today" : at >= midnight - 86_400_000 ? "Yesterday" : "Earlier";
  }
  function draw() {
    const place = document.querySelector("#chat-list");
    const head = document.querySelector("#chat-title");
    if (head) head.textContent = current && isUsed(current) ? title(current) : "";
    if (!place) return;
    const holds = (each) =>
      !asked ||
      title(each).toLowerCase().includes(asked) ||
      [...(each.entries ?? []), ...(each.messages ?? [])].some((entry) =>
        String(entry.content?.[0]?.text ?? entry.content ?? "")
          .toLowerCase()
          .includes(asked),
      );
    const shown = [...kept.values()].filter((each) => isUsed(each) && holds(each)).sort((a, b) => b.at - a.at);
    let html = "";
    let last = "";
    for (const each of shown) {
      if (day(each.at) !== last) {
        last = day(each.at);
        html += `${html ? "</ul>" : ""}<h2>${last}</h2><ul>`;
      }
      const name = escape(title(each));
      html += `<li data-id="${escape(each.id)}"><a href="#chat" data-open${
        each === current || each.id === current?.id ? ' aria-current="true"' : ""
      }>${name}</a><button class="icon" type="button" data-do="menu" aria-haspopup="menu" aria-label="Rename, export or delete: ${name}" title="Rename, export or delete">${icon(
        DOTS,
      )}</button></li>`;
    }
    html += html ? "</ul>" : `<p class="quiet">${asked ? "Nothing found." : "Your conversations appear here."}</p>`;
    if (place.dataset.html === html) return;
    const focused = document.activeElement?.closest?.("#chat-list li")?.dataset.id;
    place.dataset.html = html;
    place.innerHTML = html;
    if (focused) place.querySelector(`li[data-id="${CSS.escape(focused)}"] a`)?.focus();
  }

  chat.list = {
    keepDraft(text) {
      if (!current) return;
      current.draft = text;
      saveSoon();
    },
    keepSettings(values) {
      if (!current) return;
      current.settings = values;
      if (isUsed(current)) saveSoon();
    },
    versions: (first) => current?.versions?.[first],
    // Before an answer is asked for again: it becomes a version.
    keepVersion(group) {
      const answer = chat.value.slice(group.first, group.last + 1);
      const versions = (current.versions[group.first] ??= { shown: 0, answers: [answer] });
      versions.answers[versions.shown] = answer;
      retried = group.first;
    },
    showVersion(group, by) {
      const versions = current.versions[group.first];
      versions.answers[versions.shown] = chat.value.slice(group.first, group.last + 1);
      versions.shown = (versions.shown + by + versions.answers.length) % versions.answers.length;
      const entries = [
        ...chat.value.slice(0, group.first),
        ...versions.answers[versions.shown],
        ...chat.value.slice(group.last + 1),
      ];
      chat.set({ entries });
    },
    forgetVersions(from) {
      for (const at of Object.keys(current.versions)) if (Number(at) >= from) delete current.versions[at];
    },
  };

  chat.on("changed", () => {
    if (!current) return;
    if (current.messages && chat.value.length) delete current.messages;
    if (!current.messages) current.entries = chat.value;
    if (!chat.isGrowing() && retried !== null && chat.value.length > retried) {
      const versions = current.versions[retried];
      if (versions) {
        versions.answers.push(chat.value.slice(retried));
        versions.shown = versions.answers.length - 1;
      }
      retried = null;
    }
    if (chat.value.length && !current.title) current.title = titleOf(chat.value);
    if (chat.isGrowing()) current.at = Date.now();
    if (!current.settings) current.settings = chat.settings.now();
    if (isUsed(current)) kept.set(current.id, current);
    if (chat.isGrowing()) saveSoon();
    else save();
    draw();
  });
  chat.on("started", () => {
    kept = load();
    let id = null;
    try {
      id = sessionStorage.getItem("hfjax.chat");
    } catch {}
    open(kept.get(id) ?? fresh());
  });

  // Files ---------------------------------------------------------------------------------------------------------------
  const plain = (each) => ({
    title: title(each),
    at: new Date(each.at).toISOString(),
    settings: each.settings,
    messages:
      each.messages ??
      chat.groups(each.entries).map(({ role, text, reasoning }) => ({
        role,
        content: studio.asWritten(text),
        ...(reasoning ? { reasoning: studio.asWritten(reasoning) } : {}),
      })),
  });
  const asMarkdown = (each) =>
    [
      `# ${title(each)}`,
      ...plain(each).messages.map(({ role, content }) => `## ${role === "user" ? "You" : "Answer"}\n\n${content}`),
      "",
    ].join("\n\n");
  function download(name, text, type) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name.replace(/[^\p{L}\p{N} ._-]+/gu, "").slice(0, 60) || "conversation";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
  const asJson = (all) => JSON.stringify({ conversations: all.map(plain) }, null, 2);

  async function bring(file) {
    let all;
    try {
      if (file.size > MOST_BYTES) throw new Error("too large");
      const read = JSON.parse(await file.text());
      all = Array.isArray(read.conversations) ? read.conversations : [read];
    } catch {
      return studio.tell(`${file.name} can't be read: it must be JSON that was exported here, of at most 5 MB.`);
    }
    let count = 0;
    for (const each of all) {
      const messages = (Array.isArray(each?.messages) ? each.messages : []).filter(
        (message) => ["user", "assistant"].includes(message?.role) && typeof message.content === "string",
      );
      if (!messages.length) continue;
      const { entries, ...made } = fresh(each.settings && typeof each.settings === "object" ? each.settings : null);
      made.title = typeof each.title === "string" ? each.title.slice(0, 200) : "";
      made.title ||= messages[0].content.slice(0, 60);
      made.at = Date.parse(each.at) || Date.now();
      made.messages = messages.map(({ role, content, reasoning }) => ({
        role,
        content,
        ...(typeof reasoning === "string" ? { reasoning } : {}),
      }));
      save(made);
      count++;
    }
    draw();
    studio.tell(count ? `${count} conversation${count === 1 ? "" : "s"} imported.` : `${file.name} has no conversations.`);
  }

  // Menus ---------------------------------------------------------------------------------------------------------------
  let chosen = null;
  function menu(button, each) {
    let element = document.querySelector("#chat-menu");
    if (!element) {
      element = document.createElement("div");
      Object.assign(element, { id: "chat-menu", className: "menu", popover: "auto" });
      document.querySelector("#chat-left").append(element);
    }
    chosen = each;
    element.innerHTML = `<button type="button" data-do="rename">Rename</button>
      <button type="button" data-do="json">Export as JSON</button>
      <button type="button" data-do="markdown">Export as Markdown</button>
      <button type="button" data-do="delete" class="danger">Delete</button>`;
    const { right, bottom } = button.getBoundingClientRect();
    element.style.inset = `${Math.min(bottom + 4, innerHeight - 180)}px auto auto ${Math.max(8, right - 190)}px`;
    element.showPopover();
    element.querySelector("button").focus();
  }
  function rename(each) {
    const item = document.querySelector(`#chat-list li[data-id="${CSS.escape(each.id)}"]`);
    const field = document.createElement("input");
    Object.assign(field, { type: "text", value: title(each), maxLength: 200 });
    field.setAttribute("aria-label", "Name of the conversation");
    let ended = false; // removing the field also blurs it
    const end = (keep) => {
      if (ended) return;
      ended = true;
      if (keep && field.value.trim()) each.title = field.value.trim();
      field.remove();
      save(each);
      document.querySelector("#chat-list").dataset.html = "";
      draw();
      document.querySelector(`#chat-list li[data-id="${CSS.escape(each.id)}"] a`)?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.stopPropagation();
      end(event.key === "Enter");
    });
    item.replaceChildren(field);
    requestAnimationFrame(() => {
      // after the menu has given the focus back
      field.focus();
      field.select();
      field.addEventListener("blur", () => end(true));
    });
  }
  function remove(each) {
    kept.delete(each.id);
    try {
      localStorage.removeItem(PREFIX + each.id);
    } catch {}
    if (each === current) open(fresh(current.settings));
    draw();
  }
  // A second click says that it is meant.
  function isMeant(button) {
    if (button.dataset.asked) return true;
    button.dataset.asked = "yes";
    button.textContent = "Really delete?";
    return false;
  }

  document.addEventListener("click", (event) => {
    const target = event.target;
    const link = target.closest?.("#chat-list [data-open]");
    if (link) {
      event.preventDefault();
      const each = kept.get(link.closest("li").dataset.id);
      if (each && each !== current) {
        close();
        open(each);
      }
      studio.closeDrawers();
      document.querySelector("#message textarea")?.focus();
      return;
    }
    const element = target.closest?.("#chat-left [data-do], #chats-menu [data-do]");
    if (!element) return;
    const action = element.dataset.do;
    const hide = () => element.closest("[popover]")?.hidePopover();
    if (action === "menu") menu(element, kept.get(element.closest("li").dataset.id));
    else if (action === "new") {
      close();
      open(fresh(current.settings));
      studio.closeDrawers();
      document.querySelector("#message textarea")?.focus();
    } else if (action === "rename") {
      hide();
      rename(chosen);
    } else if (action === "json") {
      download(`${title(chosen)}.json`, asJson([chosen]), "application/json");
      hide();
    } else if (action === "markdown") {
      download(`${title(chosen)}.md`, asMarkdown(chosen), "text/markdown");
      hide();
    } else if (action === "delete" && isMeant(element)) {
      hide();
      remove(chosen);
    } else if (action === "export-all") {
      download("conversations.json", asJson([...kept.values()].filter(isUsed)), "application/json");
      hide();
    } else if (action === "import") {
      hide();
      document.querySelector("#import-chats").click();
    } else if (action === "delete-all" && isMeant(element)) {
      hide();
      for (const each of [...kept.values()]) if (each !== current) remove(each);
      remove(current);
    }
  });
  document.addEventListener("input", (event) => {
    if (event.target.id !== "search-chats") return;
    asked = event.target.value.trim().toLowerCase();
    draw();
  });
  document.addEventListener("change", (event) => {
    if (event.target.id !== "import-chats") return;
    if (event.target.files[0]) bring(event.target.files[0]);
    event.target.value = "";
  });
})();

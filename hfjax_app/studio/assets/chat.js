// The chat as the page knows it: its messages, and the way to Gradio and back.
//
// Gradio holds the conversation in a chatbot and reports each change to `changed`. The bridge, an empty component
// (chat_tab.py), sends commands to the server (`command`), puts values into the page without it (`set`), and tells what
// is known about the model (`facts`).
(() => {
  const UNCHANGED = { __type__: "update" };
  const IDLE = { __type__: "update", submit_btn: "Send", stop_btn: false };
  const listeners = { changed: [], started: [] };
  let trigger = null;
  let bridge = null;
  let pending = {};
  let isStopped = false;
  let opened = null; // the entries of a conversation that was opened since the last question

  const text = (entry) => entry.content?.[0]?.text ?? (typeof entry.content === "string" ? entry.content : "");
  const isThought = (entry) => Boolean(entry.metadata?.title);
  const isPending = (entry) => entry?.role === "assistant" && !isThought(entry) && entry.metadata?.status === "pending";

  const chat = {
    value: [], // the chatbot's entries
    facts: null, // {model, sees, pictures, context, max_tokens, recommended}
    idle: IDLE,

    on: (event, listener) => listeners[event].push(listener),

    connect(send, props, watch) {
      [trigger, bridge] = [send, props];
      const look = () => {
        if (!props.value) return;
        if (!["#conversation", "#presets", "#chat-list", "#context"].every((part) => document.querySelector(part))) {
          setTimeout(look, 30); // Gradio is still building the page
          return;
        }
        const said = JSON.parse(props.value);
        if (!said.model) return;
        const isFirst = !chat.facts;
        chat.facts = said;
        document.documentElement.dataset.sees = said.sees ? "yes" : "no";
        if (isFirst) for (const listener of listeners.started) listener();
      };
      watch("value", look);
      look();
    },

    // Reported by Gradio: the conversation has changed.
    changed(value) {
      if (!chat.facts) return;
      const before = chat.value;
      chat.value = value ?? [];
      for (const listener of listeners.changed) listener(before);
    },

    // Reported by Gradio: the model is asked. Returns the pictures that go with the question.
    asked() {
      [isStopped, opened] = [false, null];
      return chat.pictures.attached();
    },
    // Stop was pressed. Returns, as `ended`, the chatbot's new value.
    stopped(value) {
      isStopped = true;
      return chat.ended(value);
    },
    // No answer grows any more. Late pieces of one may have come after Stop, or into another conversation.
    ended(value) {
      if (opened) return opened;
      const last = value?.at(-1);
      if (!isPending(last)) return UNCHANGED;
      return [...value.slice(0, -1), chat.complete(last, isStopped ? "stopped" : "interrupted")];
    },
    complete: (entry, why) => ({
      ...entry,
      metadata: { ...entry.metadata, status: "done", log: `${entry.metadata.log} · ${why}` },
    }),

    // New values for the page: entries of the chatbot, the text of the box, the settings in their order.
    set(values) {
      Object.assign(pending, values);
      trigger("click");
    },
    take() {
      const { entries, box, settings } = pending;
      pending = {};
      opened = entries ?? opened;
      const typed = box === undefined ? {} : { value: box };
      return [
        entries ?? UNCHANGED,
        entries || box !== undefined ? { ...IDLE, ...typed } : UNCHANGED,
        ...(settings ?? Array(chat.settings.NAMES.length).fill(UNCHANGED)),
      ];
    },
    // What the model is asked: {do: "ask" | "retry" | "edit", index, text}.
    command: (data) => trigger("submit", data),
    // What only the server can draw: {do: "load", messages} or {do: "rewrite", index, text}.
    draw(request) {
      bridge.value = JSON.stringify({ ...request, at: Date.now() });
    },

    isGrowing: () => isPending(chat.value.at(-1)),

    // The messages, as the page groups entries: a thought and its answer are one.
    groups(value = chat.value) {
      const groups = [];
      value.forEach((entry, index) => {
        const last = groups.at(-1);
        if (last && last.role === entry.role) Object.assign(last, { last: index, entry });
        else groups.push({ role: entry.role, first: index, last: index, entry });
        const group = groups.at(-1);
        if (isThought(entry)) group.reasoning = text(entry);
        else group.text = text(entry);
      });
      for (const group of groups) {
        group.text ??= "";
        group.note = (!isThought(group.entry) && group.entry.metadata?.log) || "";
        group.isGrowing = isPending(group.entry);
      }
      return groups;
    },
  };
  window.studio = Object.assign(window.studio ?? {}, { chat });
})();

// Pictures for the next message: chosen, taken, dropped or pasted, shrunk here to about what models see, and shown in the
// box with their tokens; they open, and are put in order by dragging or by arrow keys. In the conversation they are parts
// of the question's entry, behind its text.
(() => {
  const MOST = 8; // of a conversation
  const SIDE = 896; // pixels of the longer side, or what the model's largest size has
  const DRAGGED = "application/x-picture";
  const QUALITY = 0.9;
  const PART = /^!\[Picture\]\((data:image\/(?:jpeg|png|webp);base64,[A-Za-z0-9+/=]+)\)$/; // as in transcript.py
  const { chat } = studio;
  const box = () => document.querySelector("#message textarea");
  const of = (entry) =>
    (Array.isArray(entry?.content) ? entry.content.slice(1) : []).flatMap((part) => PART.exec(part.text ?? "")?.[1] ?? []);
  const drafts = new Map(); // pictures attached in other conversations, by their ids, until the page is closed
  let urls = [];

  function draw() {
    const place = document.querySelector("#attached");
    if (!place) return;
    place.innerHTML = urls
      .map(
        (url, at) =>
          `<span data-picture="${at}" draggable="true"><button type="button" data-do="open-picture" title="Open"
          aria-label="Open picture ${at + 1}"><img src="${url}" alt="Picture ${at + 1}" draggable="false"></button>
          <button type="button" data-do="remove-picture" aria-label="Remove picture ${at + 1}"
          title="Remove">×</button><small class="num"></small></span>`,
      )
      .join("");
    document.dispatchEvent(new Event("attached"));
  }
  const images = (place) => [...document.querySelectorAll(`${place} img`)].filter((image) => image.naturalWidth);
  // The tokens that the model will see a picture as: `chosen` in chat/vision/picture.py.
  function tokensOf({ naturalWidth: width, naturalHeight: height }) {
    const off = ([w, h]) => Math.abs(Math.log((w * height) / (h * width)));
    const each = (chat.facts?.pictures ?? []).map((sizes) => sizes.reduce((a, b) => (off(b) < off(a) ? b : a)));
    return (each.find(([w, h]) => w * h >= width * height) ?? each.at(-1))?.[2] ?? 0;
  }
  function move(from, to) {
    if (from === to || !urls[from] || !urls[to]) return;
    urls.splice(to, 0, ...urls.splice(from, 1));
    draw();
    document.querySelector(`#attached [data-picture="${to}"] button`).focus();
    studio.say(`Picture ${from + 1} is now picture ${to + 1}.`);
  }
  function open(url) {
    const dialog = document.querySelector(".gradio-container").appendChild(document.createElement("dialog"));
    dialog.className = "picture-open";
    dialog.setAttribute("aria-label", "Picture");
    dialog.innerHTML = `<button type="button" aria-label="Close"><img src="${url}" alt="Picture"></button>`;
    dialog.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    dialog.showModal();
  }
  async function shrunk(file) {
    const picture = await createImageBitmap(new Blob([file]), { imageOrientation: "from-image" });
    const side = Math.max(SIDE, ...(chat.facts?.pictures ?? []).flat().map(([width, height]) => Math.max(width, height)));
    const scale = Math.min(1, side / Math.max(picture.width, picture.height));
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [picture.width, picture.height].map((side) => Math.max(1, Math.round(side * scale)));
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff"; // behind what is transparent
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingQuality = "high";
    context.drawImage(picture, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/jpeg", QUALITY);
  }
  async function add(file) {
    const isFull = () => chat.value.reduce((sum, entry) => sum + of(entry).length, urls.length) >= MOST;
    const refuse = () => studio.tell(`A conversation has at most ${MOST} pictures.`);
    if (isFull()) return refuse();
    let url;
    try {
      url = await shrunk(file);
    } catch {
      return studio.tell(`${file.name} can't be read as a picture.`);
    }
    if (isFull()) return refuse(); // several are pasted at a time
    urls.push(url);
    draw();
    studio.say(`Picture ${urls.length} is attached.`);
    box()?.focus();
  }
  const set = (chosen) => {
    urls = [...chosen];
    draw();
  };

  chat.pictures = {
    of,
    set,
    // Another conversation is opened: each has its own attached pictures, as it has its own half-typed message.
    open: (before, id) => {
      if (before !== undefined) drafts.set(before, urls);
      set(drafts.get(id) ?? []);
    },
    // Whether this file is taken as a picture.
    takes: (file) => Boolean(chat.facts?.sees && file?.type.startsWith("image/")),
    add,
    tokens: () => images("#attached").reduce((sum, image) => sum + tokensOf(image), 0),
    // Of those in the conversation.
    shown: () => images("#conversation .user-row").reduce((sum, image) => sum + tokensOf(image), 0),
    // For the event that asks.
    attached: () => JSON.stringify(chat.facts?.sees ? urls : []),
  };

  const questions = (value) => value.filter((entry) => entry.role === "user").length;
  chat.on("changed", (before) => {
    if (urls.length && chat.isGrowing() && questions(chat.value) > questions(before)) set([]);
  });
  document.addEventListener("change", async (event) => {
    if (!["picture-files", "picture-camera"].includes(event.target.id)) return;
    const files = [...event.target.files];
    event.target.value = "";
    for (const file of files) await add(file);
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])].filter(chat.pictures.takes);
    if (event.target !== box() || !files.length) return;
    event.preventDefault();
    files.forEach(add);
  });
  document.addEventListener("click", (event) => {
    const wanted = event.target.closest?.("[data-do]");
    if (wanted?.dataset.do === "picture") document.querySelector("#picture-files").click();
    if (wanted?.dataset.do === "camera") document.querySelector("#picture-camera").click();
    const at = Number(wanted?.closest("[data-picture]")?.dataset.picture);
    if (wanted?.dataset.do === "open-picture") open(urls[at]);
    if (wanted?.dataset.do !== "remove-picture") return;
    urls.splice(at, 1);
    draw();
    box()?.focus();
  });
  document.addEventListener(
    "load",
    (event) => {
      const place = event.target.closest?.("#attached [data-picture]");
      if (!place) return;
      const tokens = tokensOf(event.target).toLocaleString("en");
      place.querySelector("small").textContent = tokens;
      place.title = `${tokens} tokens`;
      document.dispatchEvent(new Event("attached"));
    },
    true,
  );
  // Order
  const placeOf = (event) => event.target.closest?.("#attached [data-picture]");
  document.addEventListener("dragstart", (event) => {
    const place = placeOf(event);
    if (place) event.dataTransfer.setData(DRAGGED, place.dataset.picture);
  });
  document.addEventListener("dragover", (event) => {
    if (placeOf(event) && event.dataTransfer.types.includes(DRAGGED)) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    if (!placeOf(event) || !event.dataTransfer.types.includes(DRAGGED)) return;
    event.preventDefault();
    move(Number(event.dataTransfer.getData(DRAGGED)), Number(placeOf(event).dataset.picture));
  });
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !placeOf(event)) return;
    event.preventDefault();
    const at = Number(placeOf(event).dataset.picture);
    move(at, at + step);
  });
})();

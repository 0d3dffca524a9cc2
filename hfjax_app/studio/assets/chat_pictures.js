// Pictures for the next message: chosen, dropped or pasted, shrunk here to about what models see, and shown in the box.
// In the conversation they are parts of the question's entry, behind its text.
(() => {
  const MOST = 8; // of a conversation
  const SIDE = 896; // pixels of the longer side
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
          `<button type="button" data-picture="${at}" aria-label="Remove picture ${at + 1}" title="Remove"><img src="${url}"
          alt="Picture ${at + 1}"></button>`,
      )
      .join("");
  }
  async function shrunk(file) {
    const picture = await createImageBitmap(new Blob([file]), { imageOrientation: "from-image" });
    const scale = Math.min(1, SIDE / Math.max(picture.width, picture.height));
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
    // For the event that asks.
    attached: () => JSON.stringify(chat.facts?.sees ? urls : []),
  };

  const questions = (value) => value.filter((entry) => entry.role === "user").length;
  chat.on("changed", (before) => {
    if (urls.length && chat.isGrowing() && questions(chat.value) > questions(before)) set([]);
  });
  document.addEventListener("change", async (event) => {
    if (event.target.id !== "picture-files") return;
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
    if (event.target.closest?.("[data-do=picture]")) document.querySelector("#picture-files").click();
    const removed = event.target.closest?.("#attached [data-picture]");
    if (!removed) return;
    urls.splice(Number(removed.dataset.picture), 1);
    draw();
    box()?.focus();
  });
})();

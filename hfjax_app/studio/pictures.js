// The picture editor (Gradio 6.31) sends its whole canvas as PNG, at the size of the file that was put in: a photo's is
// more than an upload may be, and the page would wait for it for ever. Pictures are made smaller where they come in;
// the models draw less. What is no picture is said below the editor, which itself says nothing.
(() => {
  const LONGEST = 1536; // pixels; as noise, PNG's worst case, that is 7 of the 10 MB of an upload
  const decode = window.createImageBitmap.bind(window);
  const say = (text) => {
    const line = document.querySelector("#source-note");
    if (line) line.textContent = text;
  };
  window.createImageBitmap = async (source, ...rest) => {
    if (!(source instanceof File)) return decode(source, ...rest);
    say("");
    let picture;
    try {
      picture = await decode(source, ...rest);
    } catch (error) {
      say("This file can't be read as a picture.");
      throw error;
    }
    const scale = LONGEST / Math.max(picture.width, picture.height);
    if (scale >= 1) return picture;
    const [resizeWidth, resizeHeight] = [picture.width, picture.height].map((side) => Math.max(1, Math.round(side * scale)));
    return decode(picture, { resizeWidth, resizeHeight, resizeQuality: "high" });
  };
})();

// The picture editor (Gradio 6.31) sends its whole canvas as PNG, at the size of the opened file. The PNG of a photo
// exceeds the upload limit, and the page would then wait for ever. This script scales pictures down when they are
// opened; the models draw smaller ones. If a file is not a picture, the script says so below the editor, because the
// editor shows no error.
(() => {
  const LONGEST = 1536; // pixels of a side; noise, PNG's worst case, is then 7 MB, and an upload may have 10
  const decode = window.createImageBitmap.bind(window);
  const showNote = (text) => {
    const line = document.querySelector("#source-note");
    if (line) line.textContent = text;
  };
  window.createImageBitmap = async (source, ...rest) => {
    if (!(source instanceof File)) return decode(source, ...rest);
    showNote("");
    let picture;
    try {
      picture = await decode(source, ...rest);
    } catch (error) {
      showNote("This file can't be read as a picture.");
      throw error;
    }
    const scale = LONGEST / Math.max(picture.width, picture.height);
    if (scale >= 1) return picture;
    const [resizeWidth, resizeHeight] = [picture.width, picture.height].map((side) => Math.max(1, Math.round(side * scale)));
    return decode(picture, { resizeWidth, resizeHeight, resizeQuality: "high" });
  };
})();

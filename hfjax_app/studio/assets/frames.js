// Gradio's status tracker (6.31) counts an event's seconds in every frame, also after the tracker has left the page. The
// tracker of the page's own loading does so until the page is closed. This script lets trackers draw once a second.
(() => {
  const request = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (draw) =>
    new Error().stack.includes("statustracker") ? setTimeout(request, 1000, draw) : request(draw);
})();

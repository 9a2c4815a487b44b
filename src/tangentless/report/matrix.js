// The kernel matrix on a canvas, in any order of rows; mouse, touch and keys zoom and move it.

async function readMatrix(text, about) {
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const { count, low, step, bits, diagonal } = about;
  const entries = (count * (count - 1)) / 2;
  const above = (place) => low + step * (bits > 8 ? (planes[place] << 8) | planes[entries + place] : planes[place]);

  function value(i, j) {
    if (i === j) return diagonal[i];
    const [a, b] = i < j ? [i, j] : [j, i];
    return above((a * (2 * count - a - 1)) / 2 + (b - a - 1));
  }

  // An index into the colours for every entry, (count, count), so that a new order of rows needs only lookups.
  function shades() {
    const found = new Uint8Array(count * count);
    const scale = 255 / Math.max(about.lightest - about.darkest, 1e-300);
    const shade = (entry) => Math.max(0, Math.min(255, Math.round((entry - about.darkest) * scale)));
    for (let i = 0, place = 0; i < count; i++) {
      found[i * count + i] = shade(diagonal[i]);
      for (let j = i + 1; j < count; j++, place++) found[i * count + j] = found[j * count + i] = shade(above(place));
    }
    return found;
  }

  return { count, value, shades };
}

// `tell(i, j)` is called with the rows of the entry pointed at, `pick(i)` with a row that was clicked.
function showMatrix(canvas, matrix, colours, tell, pick) {
  const { count } = matrix;
  const shades = matrix.shades();
  const table = new Uint32Array(colours.map(([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r));
  const sheet = document.createElement("canvas");
  sheet.width = sheet.height = count;
  const smallest = Math.min(count, 8);
  let order = Array.from({ length: count }, (_, i) => i);
  let groups = [];
  let view = { x: 0, y: 0, span: count };
  let cursor = null;
  let waiting = false;

  function paint() {
    const pixels = new ImageData(count, count);
    const out = new Uint32Array(pixels.data.buffer);
    for (let a = 0, place = 0; a < count; a++) {
      const start = order[a] * count;
      for (let b = 0; b < count; b++, place++) out[place] = table[shades[start + order[b]]];
    }
    sheet.getContext("2d").putImageData(pixels, 0, 0);
  }

  function sizes() {
    const width = canvas.clientWidth;
    const margin = groups.length ? Math.min(84, Math.round(width * 0.19)) : 0;
    return { width, margin, side: width - margin };
  }

  function draw() {
    waiting = false;
    const { width, margin, side } = sizes();
    if (side <= 0) return;
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${side}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(side * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.imageSmoothingEnabled = side / view.span < 1;
    pen.drawImage(sheet, view.x, view.y, view.span, view.span, margin, 0, side, side);
    drawGroups(pen, margin, side);
    if (cursor) drawCursor(pen, margin, side);
  }

  function drawGroups(pen, margin, side) {
    const cell = side / view.span;
    pen.fillStyle = getComputedStyle(canvas).color;
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const { name, start, end } of groups) {
      const top = Math.max((start - view.y) * cell, 0);
      const bottom = Math.min((end - view.y) * cell, side);
      if (bottom - top < 11) continue;
      pen.fillText(cut(pen, name, margin - 8), margin - 6, (top + bottom) / 2);
    }
    pen.strokeStyle = "rgba(255, 255, 255, .75)";
    pen.lineWidth = 1;
    pen.beginPath();
    for (const { end } of groups.slice(0, -1)) {
      const x = margin + (end - view.x) * cell;
      const y = (end - view.y) * cell;
      if (x > margin && x < margin + side) { pen.moveTo(x, 0); pen.lineTo(x, side); }
      if (y > 0 && y < side) { pen.moveTo(margin, y); pen.lineTo(margin + side, y); }
    }
    pen.stroke();
  }

  function cut(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    while (text.length > 1 && pen.measureText(`${text}…`).width > width) text = text.slice(0, -1);
    return `${text}…`;
  }

  function drawCursor(pen, margin, side) {
    const cell = side / view.span;
    const x = margin + (cursor.b - view.x) * cell;
    const y = (cursor.a - view.y) * cell;
    const size = Math.max(cell, 7);
    for (const [colour, width] of [["#000", 4], ["#fff", 2]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.strokeRect(x + (cell - size) / 2, y + (cell - size) / 2, size, size);
    }
  }

  function redraw() {
    if (!waiting) {
      waiting = true;
      requestAnimationFrame(draw);
    }
  }

  function place(event) {
    const { margin, side } = sizes();
    const box = canvas.getBoundingClientRect();
    const x = view.x + ((event.clientX - box.left - margin) / side) * view.span;
    const y = view.y + ((event.clientY - box.top) / side) * view.span;
    return x >= 0 && y >= 0 && x < count && y < count ? { x, y } : null;
  }

  function point(a, b) {
    cursor = { a: clamp(a, 0, count - 1), b: clamp(b, 0, count - 1) };
    tell(order[cursor.a], order[cursor.b]);
    redraw();
  }

  function clamp(value, low, high) {
    return Math.max(low, Math.min(high, value));
  }

  function look(x, y, span) {
    view = { span, x: clamp(x, 0, count - span), y: clamp(y, 0, count - span) };
    canvas.style.touchAction = span < count ? "none" : "manipulation";
    canvas.dataset.span = String(span);
    redraw();
  }

  function zoom(factor, centre) {
    const at = centre || (cursor ? { x: cursor.b + 0.5, y: cursor.a + 0.5 } : { x: view.x + view.span / 2, y: view.y + view.span / 2 });
    const span = clamp(view.span / factor, smallest, count);
    const shrink = span / view.span;
    look(at.x - (at.x - view.x) * shrink, at.y - (at.y - view.y) * shrink, span);
  }

  function follow() {
    const { a, b } = cursor;
    const x = clamp(view.x, b + 1 - view.span, b);
    const y = clamp(view.y, a + 1 - view.span, a);
    look(x, y, view.span);
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, view, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && view.span < count) {
      const scale = view.span / sizes().side;
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      drag.moved = drag.moved || Math.hypot(dx, dy) > 4;
      if (drag.moved) return look(drag.view.x - dx * scale, drag.view.y - dy * scale, view.span);
    }
    const at = place(event);
    if (at) point(Math.floor(at.y), Math.floor(at.x));
  });
  canvas.addEventListener("pointerup", (event) => {
    const at = drag && !drag.moved && place(event);
    drag = null;
    if (!at) return;
    point(Math.floor(at.y), Math.floor(at.x));
    pick(order[cursor.a]);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey) return; // the page scrolls
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.25 : 0.8, place(event));
  }, { passive: false });

  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (key in moves) {
      const by = event.shiftKey ? 10 : 1;
      const from = cursor || { a: Math.floor(view.y), b: Math.floor(view.x) };
      point(from.a + by * moves[key][0], from.b + by * moves[key][1]);
      follow();
    } else if (key === "+" || key === "=") zoom(1.5);
    else if (key === "-") zoom(1 / 1.5);
    else if (key === "0") look(0, 0, count);
    else if (key === "Enter" && cursor) pick(order[cursor.a]);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(redraw).observe(canvas.parentElement);
  document.addEventListener("themechange", redraw);

  return {
    zoom,
    whole: () => look(0, 0, count),
    // Groups are runs of rows that belong together: {name, start, end}.
    arrange(rows, runs) {
      order = rows;
      groups = runs;
      cursor = null;
      paint();
      redraw();
    },
  };
}

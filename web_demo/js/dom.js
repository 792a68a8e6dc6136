// Small helpers for elements.

export const byId = (id) => document.getElementById(id);

/** An element with properties (`class`, `text`, `on*`, attributes) and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'text') element.textContent = value;
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children);
  return element;
}

/** Fit a canvas to its box on this screen. Returns its context, scaled to CSS pixels, and its size in them. */
export function fitted(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

export const calm = window.matchMedia('(prefers-reduced-motion: reduce)');

/** Call `draw` as often as the screen is drawn; twice a second for people who want no motion. */
export function animate(draw) {
  let last = -Infinity;
  const frame = (now) => {
    if (now - last >= (calm.matches ? 500 : 30)) {
      last = now;
      draw(now);
    }
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

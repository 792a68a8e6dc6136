// What an accessibility audit would complain about: names, references, order, sizes, contrast. Returns the complaints.
() => {
  const complaints = [];
  const shown = (element) => element.checkVisibility() && element.getClientRects().length > 0;
  const name = (element) =>
    (
      element.getAttribute('aria-label') ??
      [...(element.labels ?? [])].map((label) => label.textContent).join(' ') ??
      ''
    ).trim() ||
    (element.getAttribute('aria-labelledby') ?? '')
      .split(' ')
      .map((id) => document.getElementById(id)?.textContent ?? '')
      .join(' ')
      .trim() ||
    (['INPUT', 'SELECT', 'TEXTAREA'].includes(element.tagName) ? '' : element.textContent.trim());

  const ids = [...document.querySelectorAll('[id]')].map(({ id }) => id);
  for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) complaints.push(`two of #${id}`);
  for (const attribute of ['aria-controls', 'aria-describedby', 'aria-labelledby', 'for']) {
    for (const element of document.querySelectorAll(`[${attribute}]`)) {
      for (const id of element.getAttribute(attribute).split(' ')) {
        if (!document.getElementById(id)) complaints.push(`${attribute} names #${id}, which is not there`);
      }
    }
  }
  const interactive = 'button, a[href], input, select, textarea, summary, [role=img], [tabindex="0"]';
  for (const element of document.querySelectorAll(interactive)) {
    if (!shown(element)) continue;
    if (name(element) === '') complaints.push(`no name: ${element.outerHTML.slice(0, 120)}`);
    if (element.matches('.skip, [type=radio], [type=checkbox]:not([role])')) continue;
    const { width, height } = element.getBoundingClientRect();
    if (element.matches('button, select, input:not([type=range])') && (width < 24 || height < 24)) {
      complaints.push(`small (${width} x ${height}): ${element.outerHTML.slice(0, 120)}`);
    }
  }
  for (const element of document.querySelectorAll('[tabindex]')) {
    if (element.tabIndex > 0) complaints.push(`its own focus order: ${element.outerHTML.slice(0, 120)}`);
  }
  if (!document.documentElement.lang) complaints.push('no language');
  if (document.querySelectorAll('h1').length !== 1) complaints.push('not one h1');
  for (const image of document.querySelectorAll('img:not([alt])')) complaints.push(`no alt: ${image.src}`);

  // Contrast of texts: WCAG 2.2, 1.4.3.
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([red, green, blue]) => {
    const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  };
  const background = (element) => {
    for (let here = element; here !== null; here = here.parentElement) {
      const colour = rgba(getComputedStyle(here).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return rgba('white');
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !shown(element)) continue;
    if (element.closest('.hidden, .skip, script, noscript, option, :disabled')) continue;
    const [front, back] = [rgba(getComputedStyle(element).color), background(element)].map(luminance);
    const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (contrast < 4.5) complaints.push(`contrast ${contrast.toFixed(2)}: ${texts.currentNode.textContent.trim().slice(0, 60)}`);
  }
  return complaints;
}

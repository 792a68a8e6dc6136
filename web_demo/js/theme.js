// Light, dark, or as the device says.

const ORDER = ['auto', 'light', 'dark'];

export function rememberTheme(button) {
  const show = (theme) => {
    button.querySelector('span').textContent = `Theme: ${theme}`;
    button.setAttribute('aria-label', `Theme: ${theme}`);
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  let theme = localStorage.getItem('theme') ?? 'auto';
  if (!ORDER.includes(theme)) theme = 'auto';
  show(theme);
  button.addEventListener('click', () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    localStorage.setItem('theme', theme);
    show(theme);
  });
}

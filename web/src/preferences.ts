// Small things that the browser remembers between visits: the API key, the theme, what was open. A browser that keeps nothing
// (a private window with storage off) is no error: the page then forgets.

export type Theme = 'auto' | 'light' | 'dark';

export interface Preferences {
  key: string; // of the API; sent to this server and nowhere else
  theme: Theme;
  engine: boolean; // its view is open
  last: string; // the conversation that was shown
  settings: string; // JSON: of the next new conversation
}

const kFirst: Preferences = { key: '', theme: 'auto', engine: false, last: '', settings: '' };
const kPrefix = 'moeflux.';

export function readPreferences(): Preferences {
  const out: Preferences = { ...kFirst };
  try {
    const text = (name: string) => localStorage.getItem(kPrefix + name) ?? '';
    const theme = text('theme');
    out.theme = theme === 'light' || theme === 'dark' ? theme : 'auto';
    out.key = text('key');
    out.engine = text('engine') === 'true';
    out.last = text('last');
    out.settings = text('settings');
  } catch {
    // see above
  }
  return out;
}

export function writePreferences(preferences: Preferences): void {
  try {
    for (const [name, value] of Object.entries(preferences)) {
      if (value === '' || value === false) localStorage.removeItem(kPrefix + name);
      else localStorage.setItem(kPrefix + name, String(value));
    }
  } catch {
    // see above
  }
}

export function showTheme(theme: Theme): void {
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

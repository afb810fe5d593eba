// Markdown of a model as elements that can do nothing but be read. Three walls, each of which would do: HTML in the text is
// shown as text; what marked makes of the rest passes DOMPurify with a short list of what may stay; and the page's content
// security policy runs no script and loads nothing from elsewhere.
import DOMPurify from 'dompurify';
import { Marked, type Token, type Tokens } from 'marked';
import { highlighted } from './highlight';

const kEscapes: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
const escaped = (text: string) => text.replace(/[&<>"']/g, (c) => kEscapes[c]!);

// Tags without attributes that models write where markdown has no sign of its own.
const kHarmlessTag = /^<\/?(?:br|sub|sup|kbd|u|mark)\s*\/?>$/i;
const kAddress = /^(?:https?:|mailto:)/i;

const marked = new Marked({
  gfm: true,
  breaks: false,
  renderer: {
    html: ({ text }) => (kHarmlessTag.test(text.trim()) ? text : escaped(text)),
    code({ text, lang }) {
      const language = (lang ?? '').trim().split(/\s+/)[0]!.toLowerCase();
      const html = highlighted(text, language) ?? escaped(text);
      // The name travels as a class, for DOMPurify to check like all else.
      const name = language.replace(/[^a-z0-9+#_-]/g, '');
      return `<pre><code class="hljs${name ? ` language-${name}` : ''}">${html}</code></pre>`;
    },
    // An image would be fetched from wherever the text says: a link lets the reader decide.
    image({ href, text }) {
      const label = escaped(text || href);
      return kAddress.test(href) ? `<a href="${escaped(href)}">[image: ${label}]</a>` : `[image: ${label}]`;
    },
    checkbox: ({ checked }) => (checked ? '☑ ' : '☐ '),
  },
});

const purify = DOMPurify(window);
purify.addHook('uponSanitizeAttribute', (_, attribute) => {
  if (attribute.attrName === 'class' && !/^(?:(?:hljs|language)[\w+#.-]*[ _]*)+$/.test(attribute.attrValue)) attribute.keepAttr = false;
});
purify.addHook('afterSanitizeAttributes', (node) => {
  if (node.nodeName !== 'A') return;
  node.setAttribute('target', '_blank');
  node.setAttribute('rel', 'noopener noreferrer nofollow');
});

const kAllowed = {
  ALLOWED_TAGS: [
    'a', 'blockquote', 'br', 'code', 'del', 'em', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hr', 'kbd', 'li', 'mark', 'ol', 'p', 'pre',
    'span', 'strong', 'sub', 'sup', 'table', 'tbody', 'td', 'th', 'thead', 'tr', 'u', 'ul',
  ],
  ALLOWED_ATTR: ['align', 'class', 'href', 'start', 'title'],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: kAddress,
  ADD_URI_SAFE_ATTR: ['align', 'start'], // DOMPurify takes all others for addresses
  RETURN_DOM_FRAGMENT: true as const,
};
purify.sanitize('', kAllowed); // makes its policy of trusted types, which can be made once: nothing else can take the name now

export interface Block {
  raw: string; // its markdown
  render(): DocumentFragment;
}

// The text as blocks from top to bottom. Blocks with the same `raw` look the same, so a text that grows need only be rendered
// where it has changed.
export function blocksOf(text: string): Block[] {
  let tokens: Token[];
  try {
    tokens = marked.lexer(text);
  } catch {
    tokens = [plain(text)]; // nested too deeply to be taken apart
  }
  return tokens.filter((token) => token.type !== 'space').map((token) => ({ raw: token.raw, render: () => render(token) }));
}

function plain(text: string): Tokens.Code {
  return { type: 'code', raw: text, text };
}

function render(token: Token): DocumentFragment {
  let html: string;
  try {
    html = marked.parser([token]);
  } catch {
    html = marked.parser([plain(token.raw)]);
  }
  return purify.sanitize(html, kAllowed);
}

// A text with its markdown shown. Of a text that grows only the blocks that have changed are made anew: what a reader has
// selected above stays selected, and a long answer costs no more per piece than a short one.
import { useLayoutEffect, useRef } from 'preact/hooks';
import { blocksOf } from '../markdown';
import { copyFrom } from './clipboard';

export function MarkdownView({ text }: { text: string }) {
  const container = useRef<HTMLDivElement>(null);
  const shown = useRef<string[]>([]); // the markdown of each child

  useLayoutEffect(() => {
    const element = container.current!;
    const blocks = blocksOf(text);
    let same = 0;
    while (same < blocks.length && blocks[same]!.raw === shown.current[same]) ++same;
    while (element.children.length > same) element.lastElementChild!.remove();
    for (const block of blocks.slice(same)) {
      const holder = document.createElement('div');
      holder.className = 'block';
      holder.append(block.render());
      for (const pre of holder.querySelectorAll('pre')) frameCode(pre);
      for (const table of holder.querySelectorAll('table')) frameTable(table);
      element.append(holder);
    }
    shown.current = blocks.map((b) => b.raw);
  }, [text]);

  return <div class="markdown" ref={container} />;
}

// A bar above the code, with its language and a button.
function frameCode(pre: HTMLPreElement): void {
  const code = pre.querySelector('code');
  const language = [...(code?.classList ?? [])].find((c) => c.startsWith('language-'))?.slice('language-'.length);
  const name = document.createElement('span');
  name.textContent = language ?? 'text';
  const button = document.createElement('button');
  button.type = 'button';
  button.textContent = 'Copy';
  button.setAttribute('aria-label', 'Copy code');
  button.addEventListener('click', () => void copyFrom(button, pre.textContent ?? ''));
  const bar = document.createElement('div');
  bar.className = 'code-bar';
  bar.append(name, button);
  const frame = document.createElement('div');
  frame.className = 'code-frame';
  pre.replaceWith(frame);
  pre.tabIndex = 0; // a wide block scrolls by keys
  frame.append(bar, pre);
}

function frameTable(table: HTMLTableElement): void {
  const frame = document.createElement('div');
  frame.className = 'table-frame';
  frame.tabIndex = 0;
  table.replaceWith(frame);
  frame.append(table);
}

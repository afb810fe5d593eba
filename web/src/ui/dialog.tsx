// A window over the page. The browser's own: it keeps the focus inside and closes on Escape.
import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef } from 'preact/hooks';
import { IconButton } from './icons';

export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const dialog = element.current!;
    const before = document.activeElement;
    const closed = () => onClose();
    dialog.addEventListener('close', closed);
    dialog.showModal();
    return () => {
      dialog.removeEventListener('close', closed); // it comes late, when another window may be open
      dialog.close();
      // Chromium gives the focus back without the caret, and what is typed then goes nowhere.
      if (before instanceof HTMLElement) {
        before.blur();
        before.focus();
      }
    };
  }, []);
  return (
    <dialog
      ref={element}
      aria-label={title}
      onKeyDown={(event) => event.key === 'Escape' && event.stopPropagation()}
      onClick={(event) => event.target === element.current && onClose()} // beside it
    >
      <div class="dialog-body">
        <header>
          <h2>{title}</h2>
          <IconButton icon="close" label="Close" onClick={onClose} />
        </header>
        {children}
      </div>
    </dialog>
  );
}

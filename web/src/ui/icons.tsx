// Small drawings for buttons, which have names of their own: these are hidden from screen readers.

const kPaths = {
  menu: 'M3 6h18M3 12h18M3 18h18',
  plus: 'M12 5v14M5 12h14',
  send: 'M12 19V5M5 12l7-7 7 7',
  stop: 'M7 7h10v10H7z',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  check: 'M5 13l4 4L19 7',
  edit: 'M4 20l4-1L19 8l-3-3L5 16zM14 7l3 3',
  retry: 'M4 12a8 8 0 1 0 3-6.2M4 4v4h4',
  left: 'M15 5l-7 7 7 7',
  right: 'M9 5l7 7-7 7',
  down: 'M12 5v14M5 12l7 7 7-7',
  close: 'M6 6l12 12M18 6L6 18',
  bin: 'M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v6M14 11v6',
  sliders: 'M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4',
  engine: 'M4 20V10M10 20V4M16 20v-7M21 20H3',
  keyboard: 'M3 6h18v12H3zM7 10h.01M11 10h.01M15 10h.01M8 14h8',
  out: 'M12 15V4M7 9l5-5 5 5M5 20h14',
  in: 'M12 4v11M7 10l5 5 5-5M5 20h14',
} as const;

export type IconName = keyof typeof kPaths;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={kPaths[name]} />
    </svg>
  );
}

interface IconButtonProps {
  icon: IconName;
  label: string;
  onClick: () => void;
  disabled?: boolean;
  pressed?: boolean;
  className?: string;
}

export function IconButton({ icon, label, onClick, disabled, pressed, className }: IconButtonProps) {
  return (
    <button
      type="button"
      class={`icon-button ${className ?? ''}`}
      title={label}
      aria-label={label}
      aria-pressed={pressed}
      disabled={disabled}
      onClick={onClick}
    >
      <Icon name={icon} />
    </button>
  );
}

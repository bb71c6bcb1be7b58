// Elements and numbers. Text from runs only ever becomes text nodes.

/** Creates an element. Attributes that are null or false are left out; children are elements or text. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Replaces the children of an element, unless nothing changes: a selection or a scroll position stays. */
export function replace(element, ...children) {
  const next = element.cloneNode(false);
  next.append(...children.flat());
  if (!next.isEqualNode(element)) element.replaceChildren(...next.childNodes);
}

/** Formats a number to this many digits. */
export function format(value, digits = 5) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return String(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(Math.min(3, digits - 1));
  return String(Number(value.toPrecision(digits)));
}

/** Formats bytes in GiB. */
export function gib(bytes) {
  const value = bytes / 2 ** 30;
  return `${value.toFixed(value < 9.995 ? 2 : 1)} GiB`;
}

/** Formats a duration in seconds: 42 s, 3 min 05 s, 2 h 10 min. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

/** Value of a colour variable of the style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** The same colour, more transparent: #rrggbb to #rrggbbaa. */
export function faint(hex, alpha) {
  return hex.slice(0, 7) + Math.round(alpha * 255).toString(16).padStart(2, "0");
}

/** Settings that the browser keeps, if it may. */
export const settings = {
  get(name, otherwise) {
    try {
      return localStorage.getItem(`lambert.${name}`) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`lambert.${name}`, value);
    } catch {
      // The setting lasts until the page is closed.
    }
  },
};

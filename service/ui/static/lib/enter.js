// The Enter key in a box where an input method may compose. A small state machine over the events of the
// box; it touches no page.
//
//   Korean, Windows   keydown 229, compositionend                    sends at the end of the composition
//   Korean, macOS     keydown 229, compositionend, keydown 13        the same; the second keydown is the same press
//   Korean, Safari    compositionend, keydown 229 (not composing)    sends at that keydown
//   kana, pinyin      any of these                                   takes a candidate: nothing is sent
const HANGUL = /\p{Script=Hangul}$/u;
const isEnter = event => event.key === 'Enter' || event.code === 'Enter' || event.code === 'NumpadEnter';

export const EVENTS = ['compositionstart', 'compositionupdate', 'compositionend', 'keydown', 'keyup', 'beforeinput', 'input'];

export class Enter {
  composed = null;  // what is being composed now; null while nothing is
  last = null;  // what the last composition became; null before the first
  pressed = false;  // Enter was pressed while something was composed
  told = false;  // that press has sent the text: its other events mean nothing

  // Returns 'send', 'send-after' (when this event is over), 'swallow' (nothing, and the browser does nothing), or ''.
  on(event) {
    const answer = this[event.type]?.(event);
    return answer ?? '';
  }

  compositionstart() {
    Object.assign(this, {composed: '', pressed: false, told: false});
  }

  compositionupdate(event) {
    this.composed = event.data ?? '';
  }

  compositionend(event) {
    this.last = event.data ?? this.composed ?? '';
    this.told = this.pressed && HANGUL.test(this.last);
    this.composed = null;
    this.pressed = false;
    return this.told ? 'send-after' : '';
  }

  keydown(event) {
    const again = this.told;
    if (!isEnter(event) || event.shiftKey || event.altKey) {
      this.pressed = this.told = false;
      return '';
    }
    if (event.isComposing || this.composed !== null) {
      this.pressed = true;
      return event.keyCode === 13 ? 'swallow' : '';
    }
    if (again || event.repeat) return 'swallow';
    if (event.keyCode === 229 && this.last !== null && !HANGUL.test(this.last)) return '';
    return 'send';
  }

  keyup(event) {
    if (isEnter(event)) this.told = false;
  }

  beforeinput(event) {
    return this.told && /^insert(LineBreak|Paragraph)$/.test(event.inputType) ? 'swallow' : '';
  }

  input() {
    if (this.composed === null) this.told = false;
  }
}

// What tests look at in a page; evaluated in it by the browser's DevTools.
const looking = {
  /** Set everything in one font, so that what is measured is the same on every machine. */
  async dress(font) {
    document.fonts.add(await new FontFace('one', `url("data:font/ttf;base64,${font}")`).load());
    const style = document.createElement('style');
    style.textContent = '* { font-family: one !important; }';
    document.head.append(style);
    await document.fonts.ready;
  },

  /** Count what is there, and list what a person sees wrong. Geometry is measured with all parts unfolded. */
  measure() {
    const root = document.documentElement, wrong = [], box = one => one.getBoundingClientRect();
    const all = (words, where = document) => [...where.querySelectorAll(words)];
    const say = (what, one) => wrong.push(what + ': ' + one.textContent.trim().slice(0, 60));
    const closed = all('details').filter(one => !one.open);
    closed.forEach(one => one.open = true);
    if (root.scrollWidth > root.clientWidth) wrong.push('the page is wider than the window');
    for (const name of all('tbody th')) {
      const words = document.createRange();
      words.selectNodeContents(name.firstChild);
      if (new Set([...words.getClientRects()].map(one => Math.round(one.top))).size > 1) say('over two lines', name);
    }
    for (const table of all('table')) {
      const around = table.closest('.scroll');
      if (!around || getComputedStyle(around).overflowX !== 'auto' || box(around).right > root.clientWidth + 1) {
        say('cannot be scrolled', table);
        continue;
      }
      for (const cell of all('thead th, tbody td', table))
        if (box(cell).right - box(around).left > around.scrollWidth + 1) say('cut', cell);
      for (const name of all('tbody th', table))
        if (getComputedStyle(name).position === 'sticky' && box(around).width - box(name).width < 80)
          say('hides the numbers', name);
    }
    closed.forEach(one => one.open = false);
    return {names: all('tbody th').length, tables: all('table').length, height: root.scrollHeight, wrong,
            drawn: all('.forest, .picture circle').length};
  },

  /** The texts of the rows of the list of answers, and then its status. */
  rows: () => ['tbody tr', '[role=status]'].flatMap(
    words => [...document.querySelectorAll('#answers ' + words)].map(one => one.innerText)),

  /** Sort twice by the distance, filter twice, show more; return the first row and what is said after each step. */
  use(task) {
    const find = words => document.querySelector('#answers ' + words);
    const apart = [...document.querySelectorAll('#answers th')].find(one => one.innerText === 'apart');
    const enter = (words, value) => () => {
      find(words).value = value;
      find(words).dispatchEvent(new Event('input', {bubbles: true}));
    };
    const sort = () => apart.firstChild.click(), more = () => find('details > button').click();
    return [() => {}, sort, sort, enter('input', '0.90001'), enter('select', task), more].map(step => {
      step();
      return [looking.rows()[0].slice(0, 6), looking.rows().at(-1), apart.ariaSort];
    });
  },

  /** The true width of the first picture of a section. */
  async width(place) {
    const picture = document.querySelector(place + ' img');
    await picture.decode();
    return picture.naturalWidth;
  },

  /** A column of the first table after a click on its heading. */
  sorted(place) {
    const table = document.querySelector('table');
    table.querySelectorAll('thead button')[place].click();
    return [...table.tBodies[0].rows].map(row => row.cells[place].textContent.trim());
  },
};

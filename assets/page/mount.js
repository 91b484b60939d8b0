/* Fill the elements that waited for this script, and every later one at once. */
(function () {
  "use strict";
  const waiting = window.timbreQueue || [];
  const fill = ([name, ...rest]) => window.timbre[name](...rest);
  window.timbreQueue = { push: fill };
  waiting.forEach(fill);
  // Not as an attribute of the button: the page forbids scripts in attributes.
  document.addEventListener("click", (event) => {
    if (event.target.closest(".theme-switch")) window.timbre.switchTheme();
  });
})();

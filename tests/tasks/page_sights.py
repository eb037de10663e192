"""What the tests of the page look at, as programs for the browser."""

from __future__ import annotations

__all__ = ["FAINT", "READ", "UNLABELLED"]

READ = """() => {
    const text = (it) => it.textContent.trim();
    const shown = (root, what) =>
        [...root.querySelectorAll(what)].filter((it) => !it.closest('[hidden]')).map(text);
    return {
        status: shown(document, '#status'), halted: shown(document, '#halted-text'),
        steps: [...document.querySelectorAll('.step')].map((it) => shown(it,
            '.step-title, .step-state, .risk, .step-instruction, .step-decided, .step-error, ' +
            '.step-result .body, .step-actions button, .ask[data-state=open] .ask-text')),
        live: shown(document, '.step[data-state=running] .live-output .body'),
        history: [...document.querySelectorAll('#history .told, #history q')].map(text),
    };
}"""

UNLABELLED = """() => [...document.querySelectorAll('input, textarea, select, button, a, summary, [tabindex]')]
    .filter((it) => it.tabIndex > 0
        || it.checkVisibility() && !it.innerText?.trim() && !it.labels?.length && !it.ariaLabel && it.tabIndex === 0)
    .map((it) => it.outerHTML)"""

# Text whose contrast is less than 4.5 to 1 against the nearest ground that is painted (WCAG 2.2, 1.4.3).
FAINT = """() => {
    const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgb = (colour) => {
        paint.clearRect(0, 0, 1, 1);
        paint.fillStyle = colour;
        paint.fillRect(0, 0, 1, 1);
        return [...paint.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
        .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (it) => {
        for (; it; it = it.parentElement) {
            const found = rgb(getComputedStyle(it).backgroundColor);
            if (found[3] === 255) return found;
        }
        return [255, 255, 255];
    };
    const faint = [];
    for (const it of document.querySelectorAll('body *')) {
        if (!it.checkVisibility() || it.ariaDisabled === 'true') continue;
        if (![...it.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
        const [a, b] = [light(rgb(getComputedStyle(it).color)), light(ground(it))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) faint.push(`${contrast.toFixed(2)} ${it.className} ${it.textContent.slice(0, 40)}`);
    }
    return faint;
}"""

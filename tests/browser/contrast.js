() => {
  // The contrast of every text that can be seen with what is behind it, and the text.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (rgb) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const found = rgba(getComputedStyle(one).backgroundColor);
      if (found[3] > 250) return found;
    }
    return [255, 255, 255, 255];
  };
  const texts = [...document.querySelectorAll("body *")].filter((one) =>
    [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) && one.getClientRects().length
    && !one.closest(".heatmaplayer, script, .skip, svg[role=img]"));
  return texts.map((one) => {
    const style = getComputedStyle(one);
    const ink = light(rgba(one.closest("svg") ? style.fill : style.color)), paper = light(behind(one));
    const [low, high] = [ink, paper].sort((a, b) => a - b);
    return [(high + 0.05) / (low + 0.05), one.textContent.trim().slice(0, 40)];
  });
}

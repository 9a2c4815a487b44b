"""Reports in a real browser: they load without errors or requests, and react to pointer, keys and switches."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import tangentless as tl

pytestmark = pytest.mark.browser
WIDTHS = (360, 768, 1280)
DIGITS = load_digits()
IMAGES, LABELS = (DIGITS.images[:200, ..., None] / 16).astype(np.float32), DIGITS.target[:200]
NAMES = np.array(["zero", "<b>one</b>", "two & more", "<img src=x onerror=alert(1)>", *"456789"])
KINDS = ("fit", "regression", "vectors", "search")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    k, y = tl.classical.Gaussian(1.0), IMAGES.mean(axis=(1, 2, 3))
    X, names = IMAGES.reshape(200, -1), NAMES[LABELS]
    shown = {"test": (X[:60], names[:60]), "images": IMAGES, "test_images": IMAGES[:60]}
    tl.write_report(folder / "fit.html", tl.KernelRidgeClassifier(k).fit(X, names), X, names, **shown)
    tl.write_report(folder / "regression.html", tl.KernelRidgeRegressor(k).fit(X, y), X, y, images=IMAGES)
    tl.write_report(folder / "vectors.html", tl.KernelRidgeClassifier(k).fit(X, names), X, names)
    tl.write_report(folder / "search.html", tl.search([k, tl.classical.Gaussian(0.1)], X, names, subset=100))
    return folder


@pytest.fixture
def visit(browser, reports):
    """A function that opens a report. Errors in the page's console and requests fail the test at its end."""
    contexts, trouble = [], []

    def open_page(name="fit", width=1280, scheme="light"):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.on("console", lambda message: trouble.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: trouble.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda request: trouble.append(request.url) if request.url.startswith("http") else None)
        page.goto((reports / f"{name}.html").as_uri())
        if name != "search":
            page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", KINDS)
def test_a_page_is_as_wide_as_the_screen(visit, name, width):
    page = visit(name, width)
    if name == "fit":
        page.locator(".confusion button").nth(1).click()
        page.locator("#canvas").hover()
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_pointing_at_an_entry_shows_its_images_and_its_value(visit):
    page = visit()
    box = page.locator("#canvas").bounding_box()
    page.locator("#canvas").hover(position={"x": box["width"] - 2, "y": box["height"] - 2})
    pair = page.locator("#pair")
    assert pair.locator(".value").inner_text() == "k = 1"  # the last entry, on the diagonal
    assert pair.locator(".thumb").count() == 2
    assert pair.locator("b").all_inner_texts() == ["zero", "zero"]  # the last class by name
    page.locator("#canvas").hover(position={"x": box["width"] - 2, "y": 2})
    rows = pair.locator("figcaption").all_inner_texts()
    i, j = (int(text.split()[2]) for text in rows)
    value = float(pair.locator(".value").inner_text().removeprefix("k = "))
    X = IMAGES.reshape(200, -1)
    assert value == pytest.approx(float(tl.classical.Gaussian(1.0)(X[[i]], X[[j]])[0, 0]), abs=1e-4, rel=1e-3)


def test_orders_move_entries(visit):
    page = visit()
    box = page.locator("#canvas").bounding_box()
    corner = {"x": box["width"] - 2, "y": box["height"] - 2}
    page.locator("#order").select_option("given")
    page.locator("#canvas").hover(position=corner)
    assert "training row 199" in page.locator("#pair").inner_text()
    page.locator("#order").select_option("near")
    page.locator("#canvas").hover(position={"x": 2, "y": 2})
    assert "training row 0" in page.locator("#pair").inner_text()  # the chosen image comes first


def test_the_matrix_answers_to_keys(visit):
    page = visit()
    page.locator("#order").select_option("given")
    page.locator("#canvas").focus()
    for key in ("ArrowRight", "ArrowDown", "Shift+ArrowDown"):
        page.keyboard.press(key)
    assert "training row 11" in page.locator("#pair figcaption").nth(0).inner_text()
    assert "training row 1\n" in page.locator("#pair figcaption").nth(1).inner_text()
    page.keyboard.press("+")
    assert float(page.locator("#canvas").get_attribute("data-span")) < 200
    page.keyboard.press("0")
    assert float(page.locator("#canvas").get_attribute("data-span")) == 200
    page.keyboard.press("Enter")
    assert page.locator("#chosen").input_value() == "11"


def test_buttons_and_wheel_zoom(visit):
    page = visit()
    page.locator("#closer").click()
    span = float(page.locator("#canvas").get_attribute("data-span"))
    assert span < 200
    page.locator("#canvas").click()
    page.mouse.wheel(0, -100)
    page.wait_for_function(f"Number(document.getElementById('canvas').dataset.span) < {span}")
    page.locator("#whole").click()
    assert float(page.locator("#canvas").get_attribute("data-span")) == 200


def test_everything_is_reached_by_tab(visit):
    page = visit()
    reached = set()
    for _ in range(400):
        page.keyboard.press("Tab")
        place = page.evaluate("document.activeElement.id || document.activeElement.className")
        reached.add(place)
        if page.evaluate("document.activeElement === document.body"):
            break
    assert {"theme", "order", "canvas", "chosen", "random", "example"} <= reached
    assert any(place.startswith("right") for place in reached)


def test_confusion_cells_show_their_images_and_arrows_move_between_them(visit):
    page = visit()
    cell = page.locator(".confusion").first.locator("button.right").first
    count = int(cell.inner_text())
    cell.focus()
    page.keyboard.press("Enter")
    assert page.locator("#cell .example").count() == min(count, 60)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator(".confusion [aria-pressed=true]").get_attribute("data-guess") == "1"


def test_a_picture_leads_to_its_neighbours(visit):
    page = visit()
    picture = page.locator("#examples .example").nth(3)
    item = picture.get_attribute("data-item")
    picture.click()
    assert page.locator("#chosen").input_value() == item
    assert page.locator("#nearest .example").count() == 12
    page.locator("#chosen").fill("17")
    page.keyboard.press("Enter")
    assert "training row 17" in page.locator("#nearest").inner_text()
    page.locator("#chosen").fill("1000")
    page.keyboard.press("Enter")
    assert "not in the matrix" in page.locator("#nearest").inner_text()


def test_tables_sort_by_every_column(visit):
    page = visit("search")
    heads = page.locator(".sortable th button")
    for column in range(heads.count()):
        for order in ("ascending", "descending"):
            heads.nth(column).focus()
            page.keyboard.press("Enter")
            assert page.locator(".sortable th").nth(column).get_attribute("aria-sort") == order
    images = [int(text) for text in page.locator(".sortable td:nth-child(3)").all_inner_texts()]
    heads.nth(2).click()
    assert page.locator(".sortable td:nth-child(3)").all_inner_texts() == [str(n) for n in sorted(images)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_switch(visit, scheme):
    page = visit(scheme=scheme)
    bright = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)[0] > 128"
    assert page.evaluate(bright) is (scheme == "light")
    page.locator("#theme").click()
    assert page.evaluate(bright) is (scheme == "dark")
    assert page.locator("#theme").get_attribute("aria-pressed") == str(scheme == "light").lower()


def test_names_are_shown_as_they_are(visit):
    page = visit()
    assert page.get_by_text("<b>one</b>").count() > 0
    assert page.locator("b b").count() == 0

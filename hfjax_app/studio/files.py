"""Files that the studio makes for its visitors, and that Gradio deletes in time."""


class MadeFiles(set[str]):
    """Their paths, to be among the sets that Gradio sweeps (`Blocks.temp_file_sets`).

    A component's own set is swept only as long as no event has updated the component. Gradio goes through the sets in a
    thread; files that are made meanwhile would end that, and with it all deleting.
    """

    def __iter__(self):
        return set.__iter__(self.copy())
